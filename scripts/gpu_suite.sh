#!/usr/bin/env bash
# usage: scripts/gpu_suite.sh [--quick | --measure] [--data DIR] [--build DIR] [--jobs N]
#
# Builds and runs everything that needs a GPU: the CUDA tests (one device; 1 to 4 NCCL ranks),
# compute-sanitizer, the digests of deterministic mode, and the benchmarks beside PyTorch where it
# is there. Ends with a short table. Exits with 0, 1 (something failed) or 77 (no GPU).
#
#   --quick      the tests only, fewer hangs among them: no benchmarks, no compute-sanitizer
#   --measure    the rest only: compute-sanitizer and the benchmarks
#   --data DIR   the photos for train_classifier (default: where the package puts them)
#   --build DIR  build folder (default: build-gpu)
#   --jobs N     parallel jobs (default: processors)
#
# GPU_SUITE_KEEP=DIR keeps the JSON files of the runs.
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2317  # functions are called through step
set -uo pipefail

me='gpu_suite'
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

part=all
data=''
build=$root/build-gpu
jobs=$(nproc)
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick | --measure) part=${1#--} ;;
    --data) data=${2:?}; shift ;;
    --build) build=$(realpath -m "${2:?}"); shift ;;
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

configure "$build" -DPOLYRANK_CUDA=ON -DPOLYRANK_BUILD_BENCHMARKS=ON >"$logs/configure" ||
  { tail -20 "$logs/configure"; die "configure failed"; }
grep 'cuda ' "$logs/configure"
step build cmake --build "$build" --parallel "$jobs" --target polyrank_gpu_programs train_classifier \
  cpu_adamw_bench retrofit_before_cuda retrofit_after_cuda
[[ $failed -eq 0 ]] || exit 1

run_tests() {
  step "one device" "$build/tests/cuda.device"
  for n in 1 2 3 4; do
    step "NCCL, $n ranks" bash -c "set -o pipefail; '$root/scripts/gpu_ranks.sh' $n '$build/tests/cuda.ranks' | tee '$logs/ranks$n'"
  done
  step "digest of gradients, N = 1, 2, 4" same_digest gradients "$logs"/ranks{1,2,4}
  for n in 1 2 4; do
    step "sharded optimizer, $n ranks" bash -c "set -o pipefail; '$root/scripts/gpu_ranks.sh' $n '$build/tests/zero.cuda' | tee '$logs/zero$n'"
  done
  step "digest of sharded state, N = 1, 2, 4" same_digest sharded "$logs"/zero{1,2,4}
  step "no code for this GPU" "$build/tests/wrong_gpu"
  step "2 ranks without MPI" "$root/tests/cuda/store_ranks.sh" "$build/tests/store_ranks" 2
  step "retrofit, N = 1, 4" env RANKS="1 4" "$root/examples/retrofit/prove.sh" "$build/bin/retrofit_before_cuda" \
    "$build/bin/retrofit_after_cuda" 30 "$root/scripts/gpu_ranks.sh"
  step "probe: facts, rungs, faults" "$root/tests/probe/gpu_test.sh" "$root/scripts" "$build/bin/polyrank_probe" \
    "$build/tests/polyrank_probe_take_gpu" "$build/tests/polyrank_probe_wrong_sm"
  for how in throw die; do
    step "a rank fails: $how" "$root/tests/cuda/gone.sh" 10 "$root/scripts/gpu_ranks.sh" 3 \
      "$build/tests/cuda.failing_rank" "$how"
  done

  # Hangs: faults injected into NCCL jobs; a program that knows nothing of polyrank, preloaded.
  hang=("$build/bin/polyrank_hang" selftest --backend cuda --ranks 3 --deadline 3 --jobs 6)
  preload=("$root/tests/hang/preload.sh" "$build/lib/libpolyrank_hang_preload.so")
  if [[ $part == quick ]]; then
    step "hang verdicts, 3 ranks" "${hang[@]}" --only stream,graph,count
    step "LD_PRELOAD, raw NCCL" "${preload[@]}" "$build/tests/raw_nccl" skip,kill "$root/scripts/gpu_ranks.sh" 3
  else
    step "hang verdicts, 3 ranks" "${hang[@]}" \
      --only skip,stop,kill,throw,count,type,op,order,stream,graph,join
    step "LD_PRELOAD, raw NCCL" "${preload[@]}" "$build/tests/raw_nccl" none,skip,count,kill,missing \
      "$root/scripts/gpu_ranks.sh" 3
    if python3 -c 'import torch' 2>/dev/null; then
      step "LD_PRELOAD, PyTorch DDP" "${preload[@]}" "$root/tests/hang/ddp.py" skip,count,kill \
        "$root/scripts/gpu_ranks.sh" 3
    fi
  fi

  for n in 2 4; do
    step "pipeline over NCCL, $n ranks" "$root/scripts/gpu_ranks.sh" "$n" "$build/tests/pipeline.cuda"
  done

  # The classifier: one digest for every N; accuracy beside the host's; a trace.
  train=("$build/bin/train_classifier" --quiet)
  [[ -z $data ]] || train+=(--data "$data")
  for n in 1 2 4; do
    # shellcheck disable=SC2016  # expanded by the inner shell
    step "train_classifier, digest, $n ranks" bash -c 'set -o pipefail; out=$1; shift; "$@" | tee "$out"' train \
      "$logs/digest$n" "$root/scripts/gpu_ranks.sh" "$n" "${train[@]}" --backend cuda --deterministic \
      --digest --steps 60
  done
  step "train_classifier --pipeline" env --chdir "$logs" SHORT=1 "$root/tests/pipeline/classifier_digest.sh" \
    "$root/scripts/gpu_ranks.sh" -n -- "$build/bin/train_classifier" --data "$root/examples/data" --backend cuda
  step "digest of training, N = 1, 2, 4" same_digest training "$logs"/digest{1,2,4}
  step "snapshots of device memory" "$build/tests/checkpoint.cuda"
  step "checkpoints between host and CUDA" "$root/tests/checkpoint/backends_test.sh" "$build/bin/train_classifier" \
    "$root/examples/data" "$logs" "$root/scripts"
  for run in '1 --zero 2' '2 --zero 1' '4 --zero 0'; do
    read -r n flags <<<"$run"
    # shellcheck disable=SC2016,SC2086
    step "train_classifier $flags, $n ranks" bash -c 'set -o pipefail; out=$1; shift; "$@" | tee "$out"' train \
      "$logs/zero_digest$n" "$root/scripts/gpu_ranks.sh" "$n" "${train[@]}" --backend cuda --deterministic \
      --digest --steps 40 --precision bf16 $flags
  done
  step "digest of sharded training" same_digest sharded "$logs"/zero_digest{1,2,4}
  step "train_classifier, bf16, offload" "$root/scripts/gpu_ranks.sh" 1 "${train[@]}" --backend cuda --precision bf16 \
    --zero 2 --offload host --workers 6 --json "$logs/bf16_offload.json"
  for p in fp32 bf16 fp16; do
    step "train_classifier, $p" "$root/scripts/gpu_ranks.sh" 1 "${train[@]}" --backend cuda \
      --precision "$p" --workers 6 --json "$logs/$p.json"
  done
  step "train_classifier, host, 4 ranks" mpirun "${mpirun_flags[@]}" -n 4 "${train[@]}" --backend host \
    --json "$logs/host.json"
  step "a trace of 2 ranks" "$root/scripts/gpu_ranks.sh" 2 "${train[@]}" --backend cuda --steps 30 \
    --trace "$logs/trace.json"
step "the trace is JSON" python3 -c '
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
spans = [e for e in events if e["ph"] == "X"]
names = {e["name"] for e in spans}
assert {e["pid"] for e in spans} == {0, 1} and {"linear", "update", "bucket 0"} <= names, names
print(len(spans), "spans:", *sorted(names), sep="\n  ")' "$logs/trace.json"
  within() {  # accuracy of the GPU within half a point of the host's
    python3 - "$logs" <<'END'
import json, sys
runs = {n: json.load(open(f"{sys.argv[1]}/{n}.json")) for n in ("host", "fp32", "bf16", "fp16", "bf16_offload")}
bad = 0
for name, r in runs.items():
    off = r["final"]["val_accuracy"] - runs["host"]["final"]["val_accuracy"]
    bad += abs(off) > 0.005
    print(json.dumps({"run": name, "val_accuracy": r["final"]["val_accuracy"], "loss": r["final"]["loss"],
                      "off": round(off, 4), "samples_per_second": round(r["samples_per_second"])}))
sys.exit(bad > 0)
END
  }
  step "accuracy within 0.5 points" within
  [[ -z ${GPU_SUITE_KEEP:-} ]] || cp "$logs"/*.json "$GPU_SUITE_KEEP"
}

measure() {
  if command -v compute-sanitizer >/dev/null; then
    memcheck=(compute-sanitizer --tool memcheck --error-exitcode 1 --report-api-errors no)
    step "memcheck, one device" "${memcheck[@]}" "$build/tests/cuda.device" \
      "~more than 2^31 elements" "~running out of memory*"
    for n in 1 2; do # sharing a GPU: memcheck does not know memory that another GPU has mapped
      step "memcheck, $n ranks" env POLYRANK_SHARE_GPU=1 CUDA_VISIBLE_DEVICES=0 "$root/scripts/gpu_ranks.sh" "$n" \
        "${memcheck[@]}" "$build/tests/cuda.ranks" "~a message*" "~windows come*"
    done
  fi
  step "bench: GPU stamps" "$root/scripts/gpu_ranks.sh" 1 "$build/bin/hang_cuda_bench"
  step "bench: kernels" "$build/bin/cuda_kernels_bench"
  step "bench: checkpoint" "$build/bin/cuda_checkpoint_bench"
  step "bench: grad_sync, 1 rank" "$root/scripts/gpu_ranks.sh" 1 "$build/bin/cuda_sync_bench"
  [[ $(nvidia-smi -L | grep -c '^GPU ') -lt 2 ]] ||
    step "bench: grad_sync, 2 GPUs" "$root/scripts/gpu_ranks.sh" 2 "$build/bin/cuda_sync_bench"
  step "bench: sharded optimizer, offload" "$root/scripts/gpu_ranks.sh" 1 "$build/bin/zero_cuda_bench"
  if python3 -c 'import torch' 2>/dev/null; then
    step "bench: probe, PyTorch's pinned copies" "$root/tests/bench/probe_peers.py" "$build/bin/polyrank_probe_gpu"
    step "bench: PyTorch FSDP2, offload" python3 "$root/tests/bench/zero_peers.py" --steps 2
    step "bench: CPU AdamW, PyTorch" python3 "$root/tests/bench/cpu_adamw.py" \
      --program "$build/bin/cpu_adamw_bench" --parameters 67108864 --repetitions 5
    step "bench: PyTorch kernels" python3 "$root/tests/bench/cuda_peers.py" kernels
    step "bench: PyTorch, the same network" python3 "$root/tests/bench/cuda_peers.py" mlp
  fi
}

[[ $part == measure ]] || run_tests
[[ $part == quick ]] || measure

printf '\n== gpu_suite\n'
printf '%s\n' "${table[@]}"
exit "$failed"
