#!/usr/bin/env bash
# usage: scripts/gpu_suite.sh [--quick] [--data DIR] [--build DIR] [--jobs N]
#
# Builds and runs everything that needs a GPU: the CUDA tests (one device; 1, 2 and 4 NCCL ranks),
# compute-sanitizer, the digests of deterministic mode, and the benchmarks beside PyTorch where it
# is there. Ends with a short table. Exits with 0, 1 (something failed) or 77 (no GPU).
#
#   --quick      no benchmarks, no compute-sanitizer
#   --data DIR   the photos for train_classifier (default: where the package puts them)
#   --build DIR  build folder (default: build-gpu)
#   --jobs N     parallel jobs (default: processors)
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail

me='gpu_suite'
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

quick=no
data=''
build=$root/build-gpu
jobs=$(nproc)
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=yes ;;
    --data) data=${2:?}; shift ;;
    --build) build=${2:?}; shift ;;
    --jobs) positive_number "$1" "${2:-}"; jobs=$2; shift ;;
    --help) print_help "$0" ;;
    *) usage_error "unknown option $1" ;;
  esac
  shift
done
allow_root
nvidia-smi -L 2>/dev/null | grep '^GPU ' || { say "no GPU here"; exit 77; }

table=()
failed=0
# step NAME COMMAND...: runs it for at most three minutes, notes verdict and time.
step() {
  local name=$1 start=$SECONDS verdict=ok
  shift
  [[ $(type -t "$1") == function ]] || set -- timeout -k 5 180 "$@"
  printf '\n== %s\n' "$name"
  "$@" || { verdict="FAILED ($?)"; failed=1; }
  table+=("$(printf '%-34s %4d s  %s' "$name" $((SECONDS - start)) "$verdict")")
}

# same_digest NAME FILE...: all files hold one digest, the same.
same_digest() {
  local name=$1
  shift
  local digests
  digests=$(grep -hoE 'digest=[0-9a-f]{16}' "$@" | sort | uniq -c)
  echo "$name: $digests"
  [[ $(wc -l <<<"$digests") -eq 1 && $(awk '{print $1}' <<<"$digests") -eq $# ]]
}

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

configure "$build" -DPOLYRANK_CUDA=ON -DPOLYRANK_BUILD_BENCHMARKS=ON \
  -DPOLYRANK_BUILD_EXAMPLES=OFF >"$logs/configure" ||
  { tail -20 "$logs/configure"; die "configure failed"; }
grep 'cuda ' "$logs/configure"
step build cmake --build "$build" --parallel "$jobs" --target polyrank_gpu_programs
[[ $failed -eq 0 ]] || exit 1

step "one device" "$build/tests/cuda.device"
for n in 1 2 4; do
  step "NCCL, $n ranks" bash -c "set -o pipefail; '$root/scripts/gpu_ranks.sh' $n '$build/tests/cuda.ranks' | tee '$logs/ranks$n'"
done
step "digest of gradients, N = 1, 2, 4" same_digest gradients "$logs"/ranks{1,2,4}
for how in throw die; do
  step "a rank fails: $how" "$root/tests/cuda/gone.sh" 10 "$root/scripts/gpu_ranks.sh" 3 \
    "$build/tests/cuda.failing_rank" "$how"
done

if [[ $quick == no ]]; then
  if command -v compute-sanitizer >/dev/null; then
    step memcheck compute-sanitizer --tool memcheck --error-exitcode 1 \
      "$build/tests/cuda.device" "~more than 2^31 elements" "~running out of memory*"
  fi
  step "bench: kernels" "$build/bin/cuda_kernels_bench"
  step "bench: grad_sync, 1 rank" "$root/scripts/gpu_ranks.sh" 1 "$build/bin/cuda_sync_bench"
  if python3 -c 'import torch' 2>/dev/null; then
    step "bench: PyTorch kernels" python3 "$root/tests/bench/cuda_peers.py" kernels
  fi
fi

printf '\n== gpu_suite\n'
printf '%s\n' "${table[@]}"
exit "$failed"
