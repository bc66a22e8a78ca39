#!/usr/bin/env bash
# usage: scripts/gpu_ranks.sh [-n] N COMMAND...
#
# Runs COMMAND as N ranks under mpirun with NCCL on the GPUs of this machine, several ranks on one
# GPU where there are fewer GPUs than ranks. That is for tests of correctness: such ranks talk over
# sockets, so no time measured with it means anything.
#
# Before NCCL 2.30 two ranks of one host cannot share a GPU: each rank gets a host id of its own
# (NCCL_HOSTID), so that NCCL takes it for a machine of its own. POLYRANK_SHARE_GPU=1 tells polyrank
# that this is meant; set by the caller, it shares GPUs even where there are enough.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

me='gpu_ranks'
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ ${1:-} != --help ]] || print_help "$0"
[[ ${1:-} != -n ]] || shift
positive_number N "${1:-}"
ranks=$1
shift
[[ $# -gt 0 ]] || usage_error "no command"
allow_root

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
if [[ $gpus -ge $ranks && ${POLYRANK_SHARE_GPU:-} != 1 ]]; then
  exec mpirun "${mpirun_flags[@]}" -n "$ranks" "$@"
fi
export POLYRANK_SHARE_GPU=1 NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
export NCCL_IB_DISABLE=1 NCCL_MULTI_RANK_GPU_ENABLE=1
# shellcheck disable=SC2016  # expanded by the rank
exec mpirun "${mpirun_flags[@]}" -n "$ranks" \
  bash -c 'NCCL_HOSTID=polyrank-$OMPI_COMM_WORLD_RANK exec "$@"' rank "$@"
