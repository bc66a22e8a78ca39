#!/usr/bin/env bash
# usage: scripts/fake_cluster.sh [--alone] HOSTS RANKS_PER_HOST [--] COMMAND...
#
# Runs COMMAND under mpirun on several hosts that are all this machine: each is a network namespace
# with a host name (node1, node2, ...) and an address of its own, joined by a bridge in one more
# namespace. Ranks of different hosts talk TCP, as on a cluster; the environment goes along. Exits
# with mpirun's code and takes the namespaces away. Needs root and iproute2.
#
#   scripts/fake_cluster.sh 2 2 -- build/bin/train_classifier --epochs 2
#
#   --alone       COMMAND is not run under mpirun but once, on node1, to call mpirun itself: for the
#                 hosts 10.77.0.1, 10.77.0.2, ... over interface eth0. As over ssh, they get no
#                 variables but those that mpirun is told to pass on
#   --help        this text
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

me=fake_cluster
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

prefix=polyrank-$$  # the names of our namespaces: polyrank-PID-switch, polyrank-PID-node1, ...
subnet=10.77.0

# in_namespace NAME COMMAND...: nsenter, because ip's own `-n` and `netns exec` fail in a chroot.
in_namespace() {
  local ns=$1
  shift
  nsenter --net="/run/netns/$prefix-$ns" "$@"
}

# enter NODE COMMAND...: becomes COMMAND on that host, under its host name.
enter() {
  local node=$1
  shift
  # shellcheck disable=SC2016  # $0 and $@ are the inner shell's
  exec nsenter --net="/run/netns/$prefix-node$node" unshare --uts \
    bash -c 'hostname "$0" && exec "$@"' "node$node" "$@"
}

make_cluster() {
  local node
  ip netns add "$prefix-switch"
  in_namespace switch ip link add bridge0 type bridge
  in_namespace switch ip link set bridge0 up
  for ((node = 1; node <= hosts; ++node)); do
    ip netns add "$prefix-node$node"
    in_namespace switch ip link add "port$node" type veth peer name eth0 netns "$prefix-node$node"
    in_namespace switch ip link set "port$node" master bridge0 up
    in_namespace "node$node" ip addr add "$subnet.$node/24" dev eth0
    in_namespace "node$node" ip link set eth0 up
    in_namespace "node$node" ip link set lo up
  done
}

# Ends what still runs in the namespaces of a process (ours, or one that was killed) and removes them.
remove_cluster() {
  local ns pids
  for ns in $(ip netns list | awk -v p="polyrank-$1-" 'index($1, p) == 1 { print $1 }'); do
    mapfile -t pids < <(ip netns pids "$ns")
    [[ ${#pids[@]} -eq 0 ]] || kill -KILL "${pids[@]}" 2>/dev/null || true
    ip netns del "$ns"
  done
}

remove_abandoned() {
  local owner
  for owner in $(ip netns list | sed -nE 's/^polyrank-([0-9]+)-switch.*/\1/p'); do
    [[ -d /proc/$owner ]] || remove_cluster "$owner"
  done
}

# mpirun calls this script as its remote shell: fake_cluster.sh --enter PREFIX ADDRESS COMMAND...
# or --enter-bare, which leaves the environment behind.
if [[ ${1:-} == --enter || ${1:-} == --enter-bare ]]; then
  bare=()
  [[ $1 == --enter ]] || bare=(env -i "PATH=$PATH" "HOME=${HOME:-/}")
  prefix=$2 address=$3
  shift 3
  enter "${address##*.}" "${bare[@]}" bash -c "$*"
fi

[[ ${1:-} != --help ]] || print_help "$0"
alone=no how=--enter
if [[ ${1:-} == --alone ]]; then
  alone=yes how=--enter-bare
  shift
fi
[[ $# -ge 3 ]] || usage_error "HOSTS, RANKS_PER_HOST and a command are needed"
positive_number HOSTS "$1"
positive_number RANKS_PER_HOST "$2"
hosts=$1 ranks=$2
[[ $hosts -le 200 ]] || usage_error "at most 200 hosts, got $hosts"
shift 2
[[ $1 != -- ]] || shift
[[ $# -gt 0 ]] || usage_error "HOSTS, RANKS_PER_HOST and a command are needed"
[[ $(id -u) -eq 0 ]] || die "network namespaces need root; run it with sudo"
command -v ip >/dev/null || die "no ip command here; install iproute2"
ip netns add "$prefix-probe" 2>/dev/null || die "this machine does not let root make network namespaces"
ip netns del "$prefix-probe"

remove_abandoned
trap 'remove_cluster $$' EXIT
make_cluster
allow_root

# Open MPI 4 reads the first names, 5 (PRRTE) the others.
agent="$(realpath "$0") $how $prefix"
export OMPI_MCA_plm_rsh_agent=$agent PRTE_MCA_plm_ssh_agent=$agent
export OMPI_MCA_oob_tcp_if_include=eth0 PRTE_MCA_prte_if_include=eth0
export OMPI_MCA_btl_tcp_if_include=eth0
list=''
for ((node = 1; node <= hosts; ++node)); do list+=${list:+,}$subnet.$node:$ranks; done
launcher=(mpirun "${mpirun_flags[@]}" --host "$list" -n $((hosts * ranks)))
[[ $alone == no ]] || launcher=()
(enter 1 "${launcher[@]}" "$@") <&0 &
mpirun=$!

# mpirun hears the signals that we hear, ends its ranks and says how it went.
trap 'kill -TERM $mpirun' TERM INT HUP
trap 'kill -USR1 $mpirun' USR1
trap 'kill -USR2 $mpirun' USR2
code=0
wait $mpirun || code=$?
while kill -0 $mpirun 2>/dev/null; do wait $mpirun || true; done  # a signal had ended the wait
wait $mpirun && code=0 || code=$?
exit $code
