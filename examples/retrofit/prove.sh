#!/usr/bin/env bash
# prove.sh BEFORE AFTER STEPS MPIRUN...: trains with AFTER on 1, 2, 4 and 8 ranks (or on RANKS="1 2")
# at the same global batch and compares the checkpoints byte for byte; BEFORE must reach the same
# accuracy.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
before=$(realpath "$1") after=$(realpath "$2") steps=$3
shift 3
read -ra ranks <<<"${RANKS:-1 2 4 8}"
launcher=$(command -v "$1")
launcher=$(realpath "$launcher")
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for n in "${ranks[@]}"; do
  "$launcher" "$@" -n "$n" "$after" "$steps" > "log.$n"
  mv spiral.bin "spiral.$n"
  cmp "spiral.${ranks[0]}" "spiral.$n"
done
"$before" "$steps" > log.before
echo "before: $(tail -1 log.before); after, $n ranks: $(tail -1 "log.$n")"
[[ "$(tail -1 log.before)" == "$(tail -1 "log.$n")" ]]
echo "the same bits on $(sed 's/ /, /g; s/,\( [0-9]*\)$/ and\1/' <<<"${ranks[*]}") ranks"
