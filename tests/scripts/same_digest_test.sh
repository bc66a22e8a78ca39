#!/usr/bin/env bash
# same_digest_test.sh SCRIPTS PROGRAM DATA MPIRUN...: the classifier on 2 hosts x 2 ranks ends with
# the bits of 4 ranks on one host. Skipped (77) where network namespaces cannot be made.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

cluster=$1/fake_cluster.sh
train=("$2" --data "$3" --deterministic --digest --steps 20)
shift 3

if [[ $(id -u) -ne 0 ]] || ! ip netns add "polyrank-test-$$" 2>/dev/null; then
  echo "same_digest_test: skipped, needs root and network namespaces"
  exit 77
fi
ip netns del "polyrank-test-$$"

one_host=$("$@" "${train[@]}")
two_hosts=$("$cluster" 2 2 -- "${train[@]}")
digest() { grep -Eo 'digest=[0-9a-f]{16}' <<<"$1"; }
if ! grep -q '4 on 2 hosts' <<<"$two_hosts" || [[ $(digest "$one_host") != "$(digest "$two_hosts")" ]]; then
  printf '%s\n' "same_digest_test: one host:" "$one_host" "two hosts:" "$two_hosts" >&2
  exit 1
fi
