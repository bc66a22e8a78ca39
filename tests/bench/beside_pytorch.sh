#!/usr/bin/env bash
# usage: tests/bench/beside_pytorch.sh PROGRAM [RANKS] [PYTHON] [ARGUMENT...]
# PROGRAM (ddp_step, pipeline_step) and its peer, tests/bench/PROGRAM.py over gloo, three times in
# turn with the same arguments; prints each, and the ratios (PyTorch's time / ours) of the medians and
# of the fastest steps. PYTHON must have torch; without one (default: python3) only our side runs.
# OMP_NUM_THREADS (default 1) is what each rank has, on both sides. POLYRANK_BUILD: another build folder.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
program=${1:?which program?} ranks=${2:-2} python=${3:-python3}
arguments=("${@:4}")
root=$(dirname "$0")/../..
build=${POLYRANK_BUILD:-$root/build}
if grep -qs 'POLYRANK_FAST_BUILD:BOOL=ON' "$build/CMakeCache.txt"; then
  echo "beside_pytorch: $build was built with POLYRANK_FAST_BUILD (scripts/test.sh does), so its programs are slow; build without" >&2
  exit 1
fi
if ((EUID == 0)); then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}
run=(mpirun --map-by :OVERSUBSCRIBE --bind-to none -n "$ranks" -x OMP_NUM_THREADS -x GLOO_SOCKET_IFNAME)
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
peer=no
if "$python" -c 'import torch' 2> /dev/null; then peer=yes; fi
for _ in 1 2 3; do
  "${run[@]}" "$build/bin/$program" "${arguments[@]}" | tee -a "$lines"
  if [[ $peer == yes ]]; then
    "${run[@]}" "$python" "$root/tests/bench/$program.py" "${arguments[@]}" | tee -a "$lines"
  fi
done
python3 - "$program" "$lines" <<'P'
import json, statistics, sys
runs = {}
for line in open(sys.argv[2]):
    entry = json.loads(line)
    runs.setdefault(entry["who"].split()[0], []).append(entry)
medians = {who: statistics.median(e["median_ms"] for e in all) for who, all in runs.items()}
best = {who: min(e["best_ms"] for e in all) for who, all in runs.items()}
ratio = lambda of: round(of["pytorch"] / of["polyrank"], 3) if "pytorch" in of else None
print(json.dumps({"bench": sys.argv[1], "medians_ms": medians, "ratio": ratio(medians), "best_ms": best,
                  "best_ratio": ratio(best)}))
P
