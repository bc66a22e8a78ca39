#!/usr/bin/env bash
# forgotten_wait.sh PROGRAM RUNS: ThreadSanitizer must report each forgotten wait in every run, and
# nothing where no wait was forgotten.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
program=$1 runs=$2 failures=0
for forget in none before after; do
  reported=0
  for ((seed = 0; seed < runs; ++seed)); do
    report=$("$program" "$forget" "$seed" 2>&1) || true
    if grep -q 'WARNING: ThreadSanitizer: data race' <<<"$report"; then reported=$((reported + 1)); fi
  done
  echo "forgotten wait: $forget, reported in $reported of $runs runs"
  expected=$runs
  if [[ $forget == none ]]; then expected=0; fi
  if ((reported != expected)); then failures=$((failures + 1)); fi
done
exit $((failures > 0))
