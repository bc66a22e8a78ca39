#!/usr/bin/env bash
# cluster_test.sh SCRIPTS PROBE: on hosts that are network namespaces, each fault is found and named:
# a dropped port, a wrong interface, a differing NCCL variable, a small /dev/shm.
# Skipped (77) where namespaces cannot be made.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

cluster=$1/fake_cluster.sh
probe=$2
# shellcheck source=tests/support/beside.sh
source "$(dirname "$0")/../support/beside.sh"
fail() {
  echo "cluster_test: $*" >&2
  exit 1
}
if [[ $(id -u) -ne 0 ]] || ! ip netns add "polyrank-probe-$$" 2>/dev/null; then
  echo "cluster_test: skipped, needs root and network namespaces"
  exit 77
fi
ip netns del "polyrank-probe-$$"

# check EXIT WORDS COMMAND: what two hosts print, each rank running COMMAND; every one of WORDS
# (separated by |) must be there.
check() {
  local want=$1 words=$2 code=0 output word
  output=$(PROBE=$probe "$cluster" 2 1 -- bash -c "$3" 2>&1) || code=$?
  [[ $code == "$want" ]] || fail "exit code $code, expected $want: $output"
  while IFS= read -r word; do
    grep -qF -- "$word" <<<"$output" || fail "no \"$word\" in: $output"
  done < <(tr '|' '\n' <<<"$words")
}

# shellcheck disable=SC2016  # the ranks expand these
{
  [[ -e /dev/nvidia0 ]] || beside check 23 'node1|node2|two hosts|10.77.0.1 (eth0)' 'exec "$PROBE" all'
  beside check 22 'env_differs|NCCL_ALGO: unset on rank 0 (node1), "Ring" on rank 1 (node2)' \
    '[[ $OMPI_COMM_WORLD_RANK == 0 ]] || export NCCL_ALGO=Ring; exec "$PROBE" preflight'
  beside check 20 'wrong_interface|rank 0 cannot reach rank 1 on node2 at 127.0.0.1 (lo)' \
    '[[ $OMPI_COMM_WORLD_RANK == 0 ]] || export NCCL_SOCKET_IFNAME=lo; exec "$PROBE" preflight'
  beside check 20 'shm_too_low|node2: rank 1|of 8 MiB|not run  TCP between all ranks' \
    '[[ $OMPI_COMM_WORLD_RANK == 0 ]] || exec unshare -m bash -c "mount -t tmpfs -o size=8m none /dev/shm && exec $PROBE preflight"; exec "$PROBE" preflight'
  # A route that swallows what arrives for one port, before the table of local addresses is asked.
  beside check 20 'port_blocked|rank 0 cannot reach rank 1 on node2|TCP port 47000|not run  data between ranks' \
    'if [[ $OMPI_COMM_WORLD_RANK == 1 ]]; then
       ip rule add pref 10 lookup local && ip rule del pref 0
       ip rule add pref 5 iif eth0 ipproto tcp dport 47000 blackhole
     fi; exec "$PROBE" preflight --tcp-port 47000'
}
all_done
