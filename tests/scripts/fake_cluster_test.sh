#!/usr/bin/env bash
# fake_cluster_test.sh SCRIPTS: ranks see two hosts, the exit code comes through, nothing is left.
# Skipped (77) where network namespaces cannot be made.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

cluster=$1/fake_cluster.sh
fail() {
  echo "fake_cluster_test: $*" >&2
  exit 1
}

if [[ $(id -u) -ne 0 ]]; then
  code=0 output=$("$cluster" 2 1 -- true 2>&1) || code=$?
  [[ $code == 1 && $output == "fake_cluster: network namespaces need root; run it with sudo" ]] ||
    fail "not root: $code $output"
  echo "fake_cluster_test: skipped, needs root"
  exit 77
fi
if ! ip netns add "polyrank-test-$$" 2>/dev/null; then
  echo "fake_cluster_test: skipped, this machine does not let root make network namespaces"
  exit 77
fi
ip netns del "polyrank-test-$$"

# shellcheck disable=SC2016
output=$(COLOUR=blue "$cluster" 2 2 -- bash -c \
  'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname), $COLOUR"' | sort)
[[ $output == "rank 0 of 4 on node1, blue
rank 1 of 4 on node1, blue
rank 2 of 4 on node2, blue
rank 3 of 4 on node2, blue" ]] || fail "$output"

code=0
"$cluster" 2 1 -- bash -c 'exit 7' 2>/dev/null || code=$?
[[ $code == 7 ]] || fail "exit code $code, expected 7"

# A run that is told to stop takes its namespaces and its ranks away too.
marker=86399.$$
"$cluster" 2 1 -- sleep "$marker" 2>/dev/null &
pid=$!
for ((i = 0; i < 100; ++i)); do
  [[ $(pgrep -fc "^sleep $marker") -ge 2 ]] && break
  sleep 0.1
done
[[ $i -lt 100 ]] || fail "the ranks did not start"
kill -TERM "$pid"
code=0
wait "$pid" || code=$?
[[ $code != 0 ]] || fail "exit code 0 after SIGTERM"
if pgrep -f "^sleep $marker" >/dev/null; then fail "a rank is left"; fi
if ip netns list | grep "polyrank-$pid-"; then fail "a namespace is left"; fi

# What a killed run leaves, the next one takes away.
"$cluster" 1 1 -- sleep "$marker" 2>/dev/null &
pid=$!
for ((i = 0; i < 100; ++i)); do
  pgrep -f "^sleep $marker" >/dev/null && break
  sleep 0.1
done
kill -KILL "$pid"
wait "$pid" 2>/dev/null || true
"$cluster" 1 1 -- true
if pgrep -f "^sleep $marker" >/dev/null; then fail "a rank of a killed run is left"; fi
if ip netns list | grep "polyrank-$pid-"; then fail "a namespace of a killed run is left"; fi
