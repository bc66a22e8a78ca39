#!/usr/bin/env bash
# usage: scripts/bench_multi_gpu.sh [--gpus "2 4 8"] [--only POINT,...] [--limit SECONDS] [--out DIR]
#                                   [--build DIR] [--data DIR] [--rehearse N]
#
# Measures polyrank on several GPUs of this machine, beside raw NCCL in the same process and PyTorch:
#
#   1 probe        topology and checks, compared with nvidia-smi topo -m
#   2 bandwidth    collectives from 1 MiB to 1 GiB
#   3 grad_sync    GPT-2 124M and 350M, bucket sizes; PyTorch DDP
#   4 policies     reduce policies, windows, what they cost a product that runs beside them
#   5 zero         ZeRO 0 to 2, offload: step and memory; PyTorch FSDP2
#   6 pipeline     schedules: measured step beside the simulated one
#   7 scaling      train_classifier, the batch of each rank the same, 1 to N ranks
#   8 hang         a rank dies, a rank sleeps: time to the verdict
#
# Builds first. Ends with one table; all lines are in DIR/results.json. What does not fit into the
# limit is not run, and the table says so. Exits with 0, 1 (something failed) or 77 (no GPUs).
#
#   --gpus LIST     numbers of ranks (default: those of 2, 4 and 8 that this machine has)
#   --only LIST     these points only: probe,bandwidth,...
#   --limit S       seconds for everything but the build (default 480)
#   --out DIR       where the results go (default: bench_multi_gpu)
#   --build DIR     build folder (default: build-gpu)
#   --data DIR      the photos for train_classifier (default: where the package puts them)
#   --rehearse N    N ranks on one GPU, small sizes: shows that it runs; its numbers mean nothing
#   --help          this text
#
# NVLink multicast stays off in all ranks (NCCL_NVLS_ENABLE=0 and what PyTorch and NVSHMEM call it).
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2317  # functions are called through step
set -uo pipefail

me=bench_multi_gpu
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

gpus='' only='' limit=480 out=$PWD/bench_multi_gpu build=$root/build-gpu data='' rehearse=''
while [[ $# -gt 0 ]]; do
  case $1 in
    --gpus) gpus=${2:?}; shift ;;
    --only) only=,${2:?},; shift ;;
    --limit) positive_number "$1" "${2:-}"; limit=$2; shift ;;
    --out) out=$(realpath -m "${2:?}"); shift ;;
    --build) build=$(realpath -m "${2:?}"); shift ;;
    --data) data=${2:?}; shift ;;
    --rehearse) positive_number "$1" "${2:-}"; rehearse=$2; shift ;;
    --help) print_help "$0" ;;
    *) usage_error "unknown option $1" ;;
  esac
  shift
done
allow_root
have=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
[[ $have -gt 0 ]] || { say "no GPU here"; exit 77; }
if [[ -n $rehearse ]]; then
  gpus=$rehearse
elif [[ -z $gpus ]]; then
  for n in 2 4 8; do [[ $n -gt $have ]] || gpus+=" $n"; done
  [[ -n $gpus ]] || { say "one GPU only; --rehearse 2 runs everything on it"; exit 77; }
fi
most=0
for n in $gpus; do
  positive_number --gpus "$n"
  [[ -n $rehearse || $n -le $have ]] || usage_error "--gpus $n: this machine has $have"
  [[ $n -le $most ]] || most=$n
done
mkdir -p "$out"
rm -f "$out"/*.jsonl "$out/results.json"

multicast_off=(NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1)
export "${multicast_off[@]}"
# launcher N: what starts a command on N ranks, each told of the variables; 0: nothing.
launcher() {
  local variable
  launch=()
  if [[ $1 -gt $have ]]; then
    launch=("$root/scripts/gpu_ranks.sh" "$1")
  elif [[ $1 -gt 0 ]]; then
    launch=(mpirun "${mpirun_flags[@]}")
    for variable in "${multicast_off[@]}"; do launch+=(-x "${variable%%=*}"); done
    launch+=(-n "$1")
  fi
}

failed=0
verdicts=()
started=$SECONDS
# step POINT SECONDS N COMMAND...: its JSON lines go to POINT's file, all it says to POINT's log.
step() {
  local point=$1 seconds=$2 ranks=$3 verdict=ok start=$SECONDS code=0 launch
  shift 3
  : >"$out/last"
  [[ -z $rehearse ]] || seconds=20
  local words=${*//$'\n'/ }
  [[ -z $only || $only == *,$point,* ]] || return 0
  if [[ $((SECONDS - started + seconds / 2)) -gt $limit ]]; then
    verdicts+=("$point|$ranks|not run: out of time|0|$words")
    return
  fi
  say "$point, $ranks ranks: $words" >&2
  launcher "$ranks"
  timeout -k 5 "$seconds" "${launch[@]}" "$@" >"$out/last" 2>"$out/last.err" || code=$?
  cat "$out/last" "$out/last.err" >>"$out/$point.log"
  grep '^{' "$out/last" >>"$out/$point.jsonl"
  if [[ $code -eq 77 ]]; then
    verdict='skipped (77)'
  elif [[ $code -ne 0 ]]; then
    verdict="FAILED ($code)"
    failed=1
    tail -n 15 "$out/last.err" >&2
  fi
  verdicts+=("$point|$ranks|$verdict|$((SECONDS - start))|$words")
}

programs=(multi_gpu_bench train_classifier polyrank_hang polyrank_probe)
say "building"
configure "$build" -DPOLYRANK_CUDA=ON -DPOLYRANK_BUILD_BENCHMARKS=ON >"$out/configure.log" ||
  { tail -20 "$out/configure.log"; die "configure failed"; }
cmake --build "$build" --parallel "$(nproc)" --target "${programs[@]}" >"$out/build.log" 2>&1 ||
  { tail -20 "$out/build.log"; die "the build failed"; }
say "built in $((SECONDS - started)) s"
started=$SECONDS
bin=$build/bin
bench=("$bin/multi_gpu_bench")
torch=(python3 "$root/tests/bench/cuda_peers.py")
python3 -c 'import torch' 2>/dev/null || torch=(bash -c 'exit 77')
train=("$bin/train_classifier" --backend cuda --workers 4)
[[ -z $data ]] || train+=(--data "$data")
if [[ -n $rehearse ]]; then
  megabytes=4 scale=64 bucket=1 parameters=10000000 steps=12 per_rank=64 wide=64
else
  megabytes=1024 scale=1 bucket=64 parameters=500000000 steps=200 per_rank=1024 wide=2048
fi
layers=$(printf "$wide,%.0s" {1..14})$wide  # 16 layers: two chunks for each of 8 ranks

# 1. Do all ranks have the variables? What does the probe see, and nvidia-smi?
# shellcheck disable=SC2016  # expanded by the ranks
step probe 20 "$most" bash -c 'echo "{\"bench\": \"multicast off\", \"rank\": $OMPI_COMM_WORLD_RANK,
  \"NCCL_NVLS_ENABLE\": \"$NCCL_NVLS_ENABLE\"}" | tr -d "\n"; echo'
nvidia-smi topo -m >"$out/nvidia-smi-topo.txt" 2>&1
step probe 30 "$most" "$bin/polyrank_probe" all --json "$out/probe.json"

for n in $gpus; do step bandwidth 30 "$n" "${bench[@]}" bandwidth "$megabytes"; done
for n in $gpus; do
  step grad_sync 40 "$n" "${bench[@]}" sync "$scale"
  [[ -n $rehearse ]] || step grad_sync 30 "$n" "${torch[@]}" ddp 9
done
for n in $gpus; do step policies 30 "$n" "${bench[@]}" policies "$bucket"; done
for n in $gpus; do
  step zero 40 "$n" "${bench[@]}" zero "$parameters"
  [[ -n $rehearse ]] || step zero 30 "$n" "${torch[@]}" fsdp "$parameters"
done
for n in 1 $gpus; do
  step scaling 16 "$n" "${train[@]}" --quiet --epochs 400 --steps "$steps" --batch $((per_rank * n)) \
    --json "$out/scaling$n.json"
done
for n in $gpus; do
  for schedule in gpipe 1f1b interleaved zb_h1 zb_v; do
    step pipeline 14 "$n" "${train[@]}" --pipeline "$n" --schedule "$schedule" --microbatches $((4 * n)) \
      --hidden "$layers" --epochs 400 --steps 12 --batch $((per_rank * 2 * n)) --svg "$out/$schedule.$n.svg"
    sed -nE "s/^step +([0-9.]+) ms measured, ([0-9.]+) ms predicted.*/{\"bench\": \"pipeline\", \"schedule\": \"$schedule\", \"ranks\": $n, \"measured_ms\": \1, \"simulated_ms\": \2}/p" \
      "$out/last" >>"$out/pipeline.jsonl"
  done
done
# A majority needs more than two ranks: four, which share GPUs where there are two.
step hang 40 0 "$bin/polyrank_hang" selftest --backend cuda --ranks $((most > 4 ? most : 4)) --only kill,sleep \
  --json "$out/hang.json"
rm -f "$out/last" "$out/last.err"

printf '%s\n' "${verdicts[@]}" >"$out/verdicts"
python3 "$root/tests/bench/multi_gpu_table.py" "$out" || failed=1
exit "$failed"
