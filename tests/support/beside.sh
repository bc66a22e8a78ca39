# Checks of a test script that run beside each other, because most of their time is waiting; sourced.
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash

beside_failed=$(mktemp -u)

# beside COMMAND...: starts it once fewer than four of them run.
beside() {
  while [[ $(jobs -rp | wc -l) -ge 4 ]]; do wait -n || true; done
  ("$@") || : >"$beside_failed" &
}

# Waits for all of them; fails if one has.
all_done() {
  wait
  if [[ -e $beside_failed ]]; then
    rm "$beside_failed"
    return 1
  fi
}
