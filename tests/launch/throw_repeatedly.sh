#!/usr/bin/env bash
# throw_repeatedly.sh PROGRAM TIMES MPIRUN...: one rank throws while the others are in a collective.
# Every time: the cause printed once, exit code not 0, all ranks gone within 10 s.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
program=$1 times=$2
shift 2
for ((i = 1; i <= times; ++i)); do
  code=0
  output=$(timeout -k 1 10 "$@" -n 4 "$program" throw 2>&1) || code=$?
  printed=$(grep -c 'error: deliberate failure' <<<"$output" || true)
  sleep 0.05
  left=$(pgrep -fc "^$program throw" || true)
  if ((code == 0 || code == 124 || printed != 1 || left != 0)); then
    echo "run $i: exit code $code, cause printed $printed times, $left processes left"
    echo "$output"
    exit 1
  fi
done
echo "$times of $times runs: one message, no process left, within 10 s"
