#!/usr/bin/env bash
# real_failures.sh RAW_NCCL FOLDER [NAME...]: makes NCCL fail in ways that people meet, two ranks on
# one GPU, and keeps what it says: FOLDER/NAME.log. Needs a GPU.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
program=$1 folder=$2
shift 2
chosen=" $* "
mkdir -p "$folder"

# job NAME FAULT SECONDS VARIABLES...: both ranks at once, each its own machine for NCCL.
job() {
  local name=$1 fault=$2 limit=$3 rank
  shift 3
  [[ $chosen == '  ' || $chosen == *" $name "* ]] || return 0
  for rank in 0 1; do
    env NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_HOSTID="host$rank" \
      OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=2 "$@" timeout -k 1 "$limit" stdbuf -oL \
      "$program" "$folder/$name.id" "$fault" >"$folder/$name.$rank" 2>&1 &
  done
  wait
  cat "$folder/$name".[01] >"$folder/$name.log"
  echo "== $name: $(grep -c 'NCCL WARN' "$folder/$name.log") warnings"
  grep -E 'NCCL WARN|^rank ' "$folder/$name.log" | head -4
}

job duplicate_gpu none 15 NCCL_HOSTID=one
job wrong_interface none 15 NCCL_SOCKET_IFNAME=nosuch0
job killed_peer kill 15
job wrong_network none 15 NCCL_IB_DISABLE=0 NCCL_NET=IB
job out_of_memory memory 20
job wrong_root root 15
job missing_rank missing 6
cp "$folder/killed_peer.id" "$folder/dead_root.id" 2>/dev/null
job dead_root none 15 NCCL_SOCKET_RETRY_CNT=2 NCCL_SOCKET_RETRY_SLEEP_MSEC=100
rm -f "$folder"/*.id "$folder"/*.[01]
