#!/usr/bin/env bash
# usage: one_digest.sh MPIEXEC NUMPROC_FLAG [FLAG...] -- PROGRAM [ARG...]
# Runs the program with and without sharding on 1, 2, 4 and 8 ranks; all digests must be the same.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
mpiexec=$1 count=$2
shift 2
flags=()
while [[ $1 != -- ]]; do flags+=("$1"); shift; done
shift
expected=''
for run in '1' '1 --zero 2' '2 --zero 1' '4 --zero 0' '8 --zero 2' \
  '4 --zero 1 --offload host' '2 --zero 2 --offload host --fraction 0.5'; do
  read -r ranks rest <<<"$run"
  # shellcheck disable=SC2086
  digest=$("$mpiexec" "$count" "$ranks" "${flags[@]}" "$@" $rest | grep -oE 'digest=[0-9a-f]{16}')
  echo "$run: $digest"
  expected=${expected:-$digest}
  [[ $digest == "$expected" ]] || { echo "differs from $expected"; exit 1; }
done
