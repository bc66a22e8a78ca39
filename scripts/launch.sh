#!/usr/bin/env bash
# usage: scripts/launch.sh HOSTFILE [options] -- COMMAND...
#
# Prints the exact mpirun line for the hosts of HOSTFILE and runs it. A line of HOSTFILE is
# `name slots=N` (N ranks there, one per GPU; without slots: 1); # starts a comment.
#
#   --ranks N         this many ranks in all (default: the sum of the slots)
#   --interface NAME  the network interface between the hosts, e.g. eth0: for MPI and NCCL
#   --bind none|numa  none: threads go where the kernel puts them (default); numa: each rank stays in
#                     one NUMA domain, for hosts with several sockets
#   --dry-run         only print the line
#   --help            this text
#
# Variables that go along to every rank: NCCL_*, CUDA_*, POLYRANK_*, OMP_NUM_THREADS, LD_LIBRARY_PATH
# and PATH, where they are set here.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

me=launch
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ ${1:-} != --help ]] || print_help "$0"
[[ $# -gt 0 ]] || usage_error "HOSTFILE and a command are needed"
hostfile=$1
shift
ranks='' interface='' bind=none run=yes
while [[ $# -gt 0 && $1 != -- ]]; do
  case $1 in
    --ranks) positive_number "$1" "${2:-}"; ranks=$2; shift ;;
    --interface) interface=${2:-}; [[ -n $interface ]] || usage_error "--interface needs a name"; shift ;;
    --bind) bind=${2:-}; [[ $bind == none || $bind == numa ]] || usage_error "--bind takes none or numa, got '$bind'"; shift ;;
    --dry-run) run=no ;;
    --help) print_help "$0" ;;
    *) usage_error "unknown option $1" ;;
  esac
  shift
done
[[ ${1:-} == -- && $# -gt 1 ]] || usage_error "a command is needed after --"
shift
[[ -f $hostfile ]] || die "$hostfile: no such host file"

hosts=()
declare -A names=()  # by address
slots_in_all=0
number=0
while IFS= read -r line || [[ -n $line ]]; do
  number=$((number + 1))
  line=${line%%#*}
  read -r name rest <<<"$line" || true
  [[ -n $name ]] || continue
  slots=1
  if [[ -n $rest ]]; then
    [[ $rest =~ ^slots=([1-9][0-9]*)[[:space:]]*$ ]] ||
      die "$hostfile:$number: expected 'name slots=N', got '$line'"
    slots=${BASH_REMATCH[1]}
  fi
  [[ $name != *:* ]] || die "$hostfile:$number: '$name' has a colon, which mpirun takes for slots; give the host a name"
  for other in "${hosts[@]}"; do
    [[ ${other%%:*} != "$name" ]] || die "$hostfile:$number: $name is listed twice; give it one line with all its slots"
  done
  address=$(getent ahosts "$name" | awk 'NR == 1 { print $1 }') || true
  [[ -n $address ]] || die "$hostfile:$number: unknown host '$name'"
  [[ -z ${names[$address]:-} ]] ||
    die "$hostfile:$number: $name is ${names[$address]} under another name ($address); list a host once"
  names[$address]=$name
  hosts+=("$name:$slots")
  slots_in_all=$((slots_in_all + slots))
done <"$hostfile"
[[ ${#hosts[@]} -gt 0 ]] || die "$hostfile: no hosts"
ranks=${ranks:-$slots_in_all}
[[ $ranks -le $slots_in_all ]] || die "--ranks $ranks: the hosts have $slots_in_all slots"

line=(mpirun --host "$(IFS=,; echo "${hosts[*]}")" -n "$ranks")
case $bind in
  none) line+=(--map-by slot --bind-to none) ;;
  numa) line+=(--map-by slot --bind-to numa) ;;
esac
if [[ -n $interface ]]; then
  line+=(--mca btl_tcp_if_include "$interface" --mca oob_tcp_if_include "$interface")
  export NCCL_SOCKET_IFNAME=$interface
fi
while IFS= read -r variable; do
  line+=(-x "$variable")
done < <(compgen -e | grep -E '^(NCCL_|CUDA_|POLYRANK_)|^(OMP_NUM_THREADS|LD_LIBRARY_PATH|PATH)$' | sort)
line+=("$@")

allow_root
printf '%s:' "$me"
printf ' %q' "${line[@]}"
printf '\n'
[[ $run == yes ]] || exit 0
exec "${line[@]}"
