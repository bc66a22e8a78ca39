#!/usr/bin/env bash
# preload.sh LIBRARY RAW_NCCL|ddp.py FAULTS LAUNCHER...: a program that knows nothing of polyrank,
# under LD_PRELOAD, with each of the comma-separated faults (rank 1 is wrong): the verdict names it.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
library=$1 program=$2 faults=$3
shift 3
folder=$(mktemp -d -p /dev/shm)  # a GPU cannot write into a file on a disk
trap 'rm -rf "$folder" /dev/shm/fake_nccl_*' EXIT
export POLYRANK_HANG_DIR=$folder POLYRANK_HANG_DEADLINE=${POLYRANK_HANG_DEADLINE:-2}

fail() { echo "preload.sh: $*" >&2; exit 1; }
command=("$program" "$folder/id")
collective='all_reduce #6 .*at raw_nccl[^ ]*\+0x'
if [[ $program == *.py ]]; then
  command=(python3 "$program")
  collective='all_reduce #[0-9]+ .*at libtorch_cuda\.so\+0x'
  export DDP_STORE=$folder
fi
declare -A wanted=(
  [none]='0 (raw_nccl|ddp): done'
  [skip]="82 NEVER_ENTERED .*$collective.*rank 1 "
  [sleep]="82 NEVER_ENTERED .*$collective.*rank 1 "
  [count]="81 MISMATCH .*$collective.* x (65401|994) .*rank 1 "
  [kill]="137 RANK_DEAD .*$collective.*rank 1 .*is dead"
  [exit]='80 RANK_DEAD .*rank 1 '
  [missing]='87 INIT_TIMEOUT .*ncclCommInitRank.*rank 1 did not come'
  [root]='81 MISMATCH .*broadcast #6 root 7.*rank 1 ')
for fault in ${faults//,/ }; do
  read -r code regex <<<"${wanted[$fault]}"
  got=0
  rm -f "$folder"/*
  begun=$(date +%s%N)
  out=$("$@" env LD_PRELOAD="$library" "${command[@]}" "$fault" 2>&1) || got=$?
  echo "$fault: exit code $got after $((($(date +%s%N) - begun) / 1000000)) ms"
  grep -E 'HANG verdict' <<<"$out" || true
  [[ $got == "$code" || ($fault == exit && $got == 1) || ($fault == kill && $got == 80) ]] || fail "$fault: exit code $got, expected $code: $out"
  grep -Eq -- "$regex" <<<"$out" || fail "$fault: nothing matches $regex: $out"
  [[ $fault != none || -z $(grep HANG <<<"$out") ]] || fail "a false verdict: $out"
  [[ $fault != none || -z $(ls "$folder"/*.ring 2>/dev/null) ]] || fail "a ring is left"
done
