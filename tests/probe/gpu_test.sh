#!/usr/bin/env bash
# gpu_test.sh SCRIPTS PROBE TAKE_GPU WRONG_SM: the probe on real GPUs. A healthy one is green; a busy
# one, one whose memory is taken, an orphan's, and a program without code for it each give their finding.
# WRONG_SM is a polyrank_probe_gpu whose kernels are for another GPU. Skipped (77) without a GPU.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

scripts=$1 probe=$2 take_gpu=$3 wrong_sm=$4
nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || { echo "gpu_test: skipped, no GPU"; exit 77; }
files=$(mktemp -d)
taker=''
# shellcheck disable=SC2317  # called by trap
clean_up() {
  [[ -z $taker ]] || kill -9 "$taker" 2>/dev/null || true
  rm -rf "$files"
}
trap clean_up EXIT

# check NAME EXIT WORDS COMMAND...: every one of WORDS (separated by |) must be printed.
check() {
  local name=$1 want=$2 words=$3 code=0 output word start=$SECONDS
  shift 3
  output=$("$@" 2>&1) || code=$?
  [[ $code == "$want" ]] || { echo "$name: exit code $code, expected $want: $output" >&2; exit 1; }
  while IFS= read -r word; do
    grep -qF -- "$word" <<<"$output" || { echo "$name: no \"$word\" in: $output" >&2; exit 1; }
  done < <(tr '|' '\n' <<<"$words")
  printf '%-20s ok, %d s\n' "$name" $((SECONDS - start))
}
# take ARGUMENTS...: somebody else on the GPU; its parent has ended.
take() {
  ("$take_gpu" "$@" >"$files/taker" &)
  for _ in $(seq 100); do
    if read -r _ taker <"$files/taker" && [[ -n $taker ]]; then return; fi
    sleep 0.1
  done 2>/dev/null
  echo "gpu_test: $take_gpu did not start" >&2
  exit 1
}
release() {
  kill -9 "$taker"
  while kill -0 "$taker" 2>/dev/null && [[ $(ps -o stat= -p "$taker") != Z* ]]; do sleep 0.1; done
  taker=''
  sleep 1
}

"$(dirname "$0")/against_smi.py" "$probe"
check healthy 0 'exit=0|small win|TFLOP/s' "$scripts/gpu_ranks.sh" 1 "$probe" preflight
check '4 ranks' 0 'ranks=4|all_reduce with 4' "$scripts/gpu_ranks.sh" 4 "$probe" preflight
check bandwidth 0 'all_to_all|GPU to host|1 pair' "$scripts/gpu_ranks.sh" 2 "$probe" bandwidth
check ladder 0 'NCCL, 2 ranks' "$scripts/gpu_ranks.sh" 2 "$probe" ladder
check 'memory asked for' 20 'memory_short|--memory asks for 4000 GiB|not run  libraries' \
  "$scripts/gpu_ranks.sh" 1 "$probe" preflight --memory 4000
mkdir "$files/bin"
cp "$probe" "$files/bin/polyrank_probe"
cp "$wrong_sm" "$files/bin/polyrank_probe_gpu"
check 'unknown SM' 20 'no_code|not run  GPU health' "$scripts/gpu_ranks.sh" 1 "$files/bin/polyrank_probe" preflight
take 0.5
check 'busy GPU' 10 "gpu_busy|pid $taker polyrank_probe_|orphan" "$probe" topo
release
take 30 idle
check 'memory taken' 10 'memory_taken|GiB in use' "$probe" topo
release
