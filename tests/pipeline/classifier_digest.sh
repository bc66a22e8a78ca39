#!/usr/bin/env bash
# usage: classifier_digest.sh MPIEXEC NUMPROC_FLAG [FLAG...] -- PROGRAM [ARG...]
# A model cut over ranks ends with the bits of the whole model that adds up the same microbatches;
# with replicas of it, of as many ranks with whole models. SHORT=1: two of each only. Leaves files in the
# current folder.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
mpiexec=$1 count=$2
shift 2
flags=()
while [[ $1 != -- ]]; do flags+=("$1"); shift; done
shift
train=("$@" --hidden "40,32,48,32,24,40,32" --steps 12 --quiet --digest)
start() {  # start RANKS [FLAG...]
  local ranks=$1
  shift
  "$mpiexec" "$count" "$ranks" "${flags[@]}" "${train[@]}" "$@"
}
declare -A expected
compare() {  # compare MICROBATCHES RANKS [FLAG...]: the first of so many microbatches sets what the others must be
  local digest key=$1
  shift
  digest=$(start "$@" | grep -oE 'digest=[0-9a-f]{16}')
  echo "$*: $digest"
  : "${expected[$key]:=$digest}"
  [[ $digest == "${expected[$key]}" ]] || { echo "differs from ${expected[$key]}"; exit 1; }
}
compare 4 1 --accumulate 4
compare 4 2 --pipeline 2 --schedule zb_v --microbatches 4 --svg step.svg --trace step.json
grep -q '>rank 1 pred<' step.svg && grep -q '"measured rank 1"' step.json
compare 2 2 --accumulate 2
compare 2 4 --pipeline 2 --schedule zb_h1 --microbatches 2 --zero 2 --offload host
[[ -z ${SHORT:-} ]] || exit 0
compare 4 4 --pipeline 4 --schedule dualpipe_v --microbatches 4
compare 4 3 --pipeline 3 --schedule interleaved --microbatches 4 --zero 2
compare 2 4 --pipeline 2 --schedule zb_h1 --microbatches 2
compare 2 4 --pipeline 2 --schedule 1f1b --microbatches 2 --zero 1
# The norm that clips is that of all stages.
whole=$(start 2 --zero 1 --accumulate 2 --clip 0.5 --json whole.json)
cut=$(start 4 --zero 1 --pipeline 2 --microbatches 2 --clip 0.5 --json cut.json)
echo "clipped: $whole $cut"
python3 - <<'END'
import json
whole, cut = (json.load(open(f"{name}.json"))["losses"] for name in ("whole", "cut"))
assert len(whole) == len(cut) and all(abs(a - b) <= 1e-5 * abs(a) for a, b in zip(whole, cut)), (whole, cut)
END
