#!/usr/bin/env bash
# launch_cluster_test.sh SCRIPTS: launch.sh starts ranks on two hosts, which get the variables that it
# passes on and no others; what it prints is what runs. Skipped (77) without network namespaces.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
scripts=$1
fail() {
  echo "launch_cluster_test: $*" >&2
  exit 1
}
if ! ip netns add "polyrank-test-$$" 2>/dev/null; then
  echo "launch_cluster_test: skipped, no network namespaces here"
  exit 77
fi
ip netns del "polyrank-test-$$"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '10.77.0.1 slots=1\n10.77.0.2 slots=2\n' >"$folder/hosts"
export NCCL_DEBUG=WARN CUDA_MODULE_LOADING=LAZY POLYRANK_LOG=info OMP_NUM_THREADS=3 COLOUR=blue

# shellcheck disable=SC2016  # the ranks expand it
body='echo "rank $OMPI_COMM_WORLD_RANK $(hostname) $NCCL_DEBUG $NCCL_SOCKET_IFNAME $CUDA_MODULE_LOADING $POLYRANK_LOG $OMP_NUM_THREADS ${COLOUR:-none}"'
output=$("$scripts/fake_cluster.sh" --alone 2 2 -- "$scripts/launch.sh" "$folder/hosts" --interface eth0 -- bash -c "$body")
ranks=$(grep '^rank' <<<"$output" | sort)
# node1 is where mpirun runs: its ranks have all of its environment.
[[ $ranks == "rank 0 node1 WARN eth0 LAZY info 3 blue
rank 1 node2 WARN eth0 LAZY info 3 none
rank 2 node2 WARN eth0 LAZY info 3 none" ]] || fail "$output"

# The line that it prints does the same.
line=$(sed -n 's/^launch: //p' <<<"$output")
[[ $line == "mpirun --host 10.77.0.1:1\\,10.77.0.2:2 -n 3 --map-by slot --bind-to none --mca btl_tcp_if_include eth0"* ]] || fail "$line"
again=$(NCCL_SOCKET_IFNAME=eth0 "$scripts/fake_cluster.sh" --alone 2 2 -- bash -c "$line" | sort)
[[ $again == "$ranks" ]] || fail "the printed line gave: $again"

# A host that is not there ends the run with an error.
echo '10.77.0.9' >>"$folder/hosts"
code=0
timeout 60 "$scripts/fake_cluster.sh" --alone 2 2 -- "$scripts/launch.sh" "$folder/hosts" --interface eth0 -- true >/dev/null 2>&1 || code=$?
[[ $code != 0 && $code != 124 ]] || fail "exit code $code with a host that is not there"
