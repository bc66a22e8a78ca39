#!/usr/bin/env bash
# store_ranks.sh PROGRAM N: N plain processes, without mpirun, meet over TCP, then over a folder.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
program=$1 ranks=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [[ $(nvidia-smi -L | grep -c '^GPU ') -lt $ranks ]]; then # as gpu_ranks.sh does
  export POLYRANK_SHARE_GPU=1 NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} NCCL_IB_DISABLE=1
  export NCCL_MULTI_RANK_GPU_ENABLE=1
  share=yes
fi
port=$((20000 + RANDOM % 20000))
for where in "tcp localhost:$port" "file $folder/job"; do
  pids=()
  for ((r = ranks - 1; r >= 0; --r)); do
    # shellcheck disable=SC2086  # two words
    env ${share:+NCCL_HOSTID=polyrank-$r} timeout 60 "$program" "$r" "$ranks" $where &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
done
