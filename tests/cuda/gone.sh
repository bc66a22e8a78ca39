#!/usr/bin/env bash
# gone.sh SECONDS COMMAND...: the command must fail, and within that time after its start-up of at
# most 20 seconds; nothing of it may be left.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
limit=$1
shift
start=$SECONDS
timeout --signal=KILL $((limit + 20)) "$@"
code=$?
echo "gone.sh: exit code $code after $((SECONDS - start)) s"
[[ $code -ne 0 && $code -ne 77 && $code -ne 137 || $((SECONDS - start)) -lt $limit ]] || exit 1
[[ $((SECONDS - start)) -lt $((limit + 20)) ]] || exit 1
! pgrep -f "^${*: -2}\$" >/dev/null || { echo "gone.sh: a rank is still there"; exit 1; }
