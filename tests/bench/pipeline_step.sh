#!/usr/bin/env bash
# usage: tests/bench/pipeline_step.sh [RANKS] [SCHEDULE] [PYTHON]
# The step of pipeline_step.cpp and of torch.distributed.pipelining over gloo, one thread a rank, three
# times in turn; prints each and the ratio of the medians (PyTorch's time / ours). SCHEDULE: 1f1b or
# gpipe. PYTHON must have torch; without one (default: python3) only our side runs.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
ranks=${1:-2} schedule=${2:-1f1b} python=${3:-python3}
root=$(dirname "$0")/../..
build=${POLYRANK_BUILD:-$root/build}
if ((EUID == 0)); then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}
run=(mpirun --map-by :OVERSUBSCRIBE --bind-to none -n "$ranks" -x OMP_NUM_THREADS -x GLOO_SOCKET_IFNAME)
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
peer=no
if "$python" -c 'import torch' 2> /dev/null; then peer=yes; fi
for _ in 1 2 3; do
  "${run[@]}" "$build/bin/pipeline_step" "$schedule" | tee -a "$lines"
  if [[ $peer == yes ]]; then
    "${run[@]}" "$python" "$root/tests/bench/pipeline_step.py" "$schedule" | tee -a "$lines"
  fi
done
python3 - "$lines" <<'P'
import json, statistics, sys
times = {}
for line in open(sys.argv[1]):
    entry = json.loads(line)
    times.setdefault(entry["who"].split()[0], []).append(entry["median_ms"])
medians = {who: statistics.median(t) for who, t in times.items()}
ratio = round(medians["pytorch"] / medians["polyrank"], 3) if "pytorch" in medians else None
print(json.dumps({"bench": "pipeline_step", "medians_ms": medians, "ratio": ratio}))
P
