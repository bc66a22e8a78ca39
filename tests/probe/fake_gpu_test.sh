#!/usr/bin/env bash
# fake_gpu_test.sh PROGRAM MPIRUN...: two ranks over synthetic GPUs; each fault gives its finding, its
# exit code, and the list of rungs that were not run.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

program=$1
shift
launcher=("$@")
files=$(mktemp -d)
trap 'wait; rm -rf "$files"' EXIT
# shellcheck source=tests/support/beside.sh
source "$(dirname "$0")/../support/beside.sh"

# check EXIT SCENARIO WORDS COMMAND...: every one of WORDS (separated by |) must be printed. Exit code
# 0 stands for 10, too: this machine may have warnings of its own.
check() {
  local want=$1 scenario=$2 words=$3 code=0 output word
  shift 3
  output=$(POLYRANK_FAKE_GPU=$scenario "${launcher[@]}" -n 2 "$program" "$@" 2>&1) || code=$?
  [[ $want != 0 || $code != 10 ]] || code=0
  [[ $code == "$want" ]] || { echo "$scenario: exit code $code, expected $want: $output" >&2; exit 1; }
  while IFS= read -r word; do
    grep -qF -- "$word" <<<"$output" || { echo "$scenario: no \"$word\" in: $output" >&2; exit 1; }
  done < <(tr '|' '\n' <<<"$words")
}

beside check 0 healthy 'all_reduce with 2 GPUs|28 pairs, 390 GB/s|700 TFLOP/s bf16|gradients within 1e-06' preflight
beside check 0 healthy 'NV18|0.98   ok|all_reduce busbw|54 GB/s to, 55 GB/s from' bandwidth 60 "$files/costs.json"
beside check 0 healthy 'NCCL, 1 rank           all_reduce with 1 GPU|NCCL, 2 ranks' ladder
beside check 20 old_driver 'driver_too_old|supports CUDA 12.2|not run  code for this GPU|not run  matrix products' preflight
beside check 20 cuda_hangs 'cuda_hung|no answer within 1 s|only a reset or reboot' preflight 3
beside check 20 no_code 'no_code|compute capability 9.0|not run  GPU health' preflight
beside check 21 pair_hangs 'p2p_hung|GPU0 - GPU1 (peer, NV18)|no answer within 2 s|through host memory the data arrive|not run  NCCL' preflight 6
beside check 21 pair_corrupts 'p2p_corrupt|GPU0 - GPU1 (peer, NV18): data changed|not run  small win' preflight
beside check 20 nccl_hangs 'nccl_hung|rank 1: no answer within 2 s|not run  small win' preflight 6
beside check 21 swap_hangs 'p2p_hung|rank 0 - rank 1 (NCCL, NV18)|all_reduce busbw' bandwidth 6
beside check 20 crash 'gpu_test_failed|rank 1: the process that asks the GPU ended: signal 6' preflight
beside check 20 wrong 'small_win_wrong|rank 1: loss 2.3|not run  matrix products' preflight
beside check 0 slow 'gemm_slow|rank 1: 300 TFLOP/s' preflight
beside check 20 slow_link 'link_bad|GPU1 (host to GPU, gen5 x16): 20 GB/s, usual are 55 (36 %)' bandwidth
all_done
python3 - "$files/costs.json" <<'END'
import json, sys
c = json.load(open(sys.argv[1]))  # the ring behind the synthetic times; transfers as measured
assert abs(c["alpha"] / 5e-6 - 1) < 1e-6 and abs(c["beta"] / 300e9 - 1) < 1e-6, c
assert c["inside_alpha"] == 8e-6 and c["inside_beta"] == 350e9, c
END
