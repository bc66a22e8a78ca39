#!/usr/bin/env bash
# prove.sh BEFORE AFTER STEPS MPIRUN...: trains with AFTER on 1, 2, 4 and 8 ranks at the same global
# batch and compares the checkpoints byte for byte; BEFORE must reach the same accuracy.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
before=$(realpath "$1") after=$(realpath "$2") steps=$3
shift 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for n in 1 2 4 8; do
  "$@" -n "$n" "$after" "$steps" > "log.$n"
  mv spiral.bin "spiral.$n"
  cmp spiral.1 "spiral.$n"
done
"$before" "$steps" > log.before
echo "before: $(tail -1 log.before); after, 8 ranks: $(tail -1 log.8)"
[[ "$(tail -1 log.before)" == "$(tail -1 log.8)" ]]
echo "the same bits on 1, 2, 4 and 8 ranks"
