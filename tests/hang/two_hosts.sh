#!/usr/bin/env bash
# two_hosts.sh FAKE_CLUSTER POLYRANK_HANG OPTIONS...: the selftest on two made-up hosts. Says so and
# is skipped where there is no root or no network namespace.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cluster=$1 hang=$2
shift 2
if [[ $(id -u) -ne 0 ]] || ! command -v ip >/dev/null || ! unshare --net true 2>/dev/null; then
  echo "two hosts need root, iproute2 and network namespaces"
  exit 77
fi
exec "$hang" selftest --cluster "$cluster" "$@"
