#!/usr/bin/env bash
# bench_multi_gpu_test.sh SCRIPTS SCRATCH: the benchmark of several GPUs with stand-ins for all that
# needs one: every point is in table and JSON, failures and what was not run are said.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
script=$1/bench_multi_gpu.sh dir=$2/multi_gpu
fail() {
  echo "bench_multi_gpu_test: $*" >&2
  exit 1
}
rm -rf "$dir" && mkdir -p "$dir/path" "$dir/build/bin"
stand_in() { cat >"$1"; chmod +x "$1"; }
stand_in "$dir/path/cmake" <<<'#!/bin/sh'
stand_in "$dir/path/nvidia-smi" <<'END'
#!/bin/sh
[ "$1" = -L ] && { echo "GPU 0: A"; echo "GPU 1: A"; exit 0; }
printf '\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-15\nGPU1\tNV18\t X \t0-15\n\nLegend:\n'
END
stand_in "$dir/path/mpirun" <<'END'
#!/bin/sh
while [ "$1" != -n ]; do [ "$1" != -x ] || echo "$2" >>"$CALLS"; shift; done
n=$2; shift 2
OMPI_COMM_WORLD_RANK=0 RANKS=$n exec "$@"
END
stand_in "$dir/path/python3" <<END
#!/bin/sh
[ "\$1" != -c ] || exit 1
exec $(command -v python3) "\$@"
END
stand_in "$dir/build/bin/multi_gpu_bench" <<'END'
#!/bin/sh
[ "$1" != policies ] || { echo "no policies today" >&2; exit 1; }
echo "{\"bench\": \"$1\", \"ranks\": $RANKS, \"nvls\": \"$NCCL_NVLS_ENABLE\"}"
END
stand_in "$dir/build/bin/train_classifier" <<'END'
#!/bin/sh
echo "step     3.25 ms measured, 3.10 ms predicted from its own times"
while [ $# -gt 0 ]; do [ "$1" != --json ] || echo "{\"ranks\": $RANKS, \"samples_per_second\": $((RANKS * 900 + 100))}" >"$2"; shift; done
END
stand_in "$dir/build/bin/polyrank_probe" <<'END'
#!/bin/sh
echo '{"pairs": [{"a": 0, "b": 1, "nvlink": 18, "pci": "SYS"}]}' >"$3"
END
stand_in "$dir/build/bin/polyrank_hang" <<'END'
#!/bin/sh
while [ "$1" != --json ]; do shift; done
echo '[{"scenario": "kill", "seconds": 0.6}]' >"$2"
END
export CALLS=$dir/calls
run() {
  code=0
  PATH="$dir/path:$PATH" "$script" --out "$dir/out" --build "$dir/build" "$@" >"$dir/said" 2>"$dir/err" || code=$?
}
run
[[ $code -eq 1 ]] || { cat "$dir/said" "$dir/err"; fail "exit code $code, expected 1: policies fail"; }
for words in 'agree True' 'bench bandwidth  ranks 2  nvls 0' 'bench sync  ranks 2' 'FAILED (1).*policies' 'bench zero' \
  'schedule zb_v  ranks 2  measured_ms 3.25  simulated_ms 3.1' 'ranks 2  samples_per_second 1900  efficiency 0.95' \
  'scenario kill  seconds 0.6' 'skipped (77)' 'NCCL_NVLS_ENABLE 0'; do
  grep -q -- "$words" "$dir/said" || { cat "$dir/said"; fail "the table lacks: $words"; }
done
[[ $(sort -u "$CALLS" | xargs) == 'NCCL_NVLS_ENABLE NVSHMEM_DISABLE_NVLS TORCH_SYMM_MEM_DISABLE_MULTICAST' ]] ||
  fail "not forwarded: $(sort -u "$CALLS")"
grep -q 'no policies today' "$dir/out/policies.log" || fail "the log lacks why"
[[ $(python3 -c 'import json, sys; print(*json.load(open(sys.argv[1]))["points"])' "$dir/out/results.json") == \
  'probe bandwidth grad_sync policies zero pipeline scaling hang' ]] || fail "results.json lacks points"
run --only bandwidth,zero --limit 15
[[ $code -eq 0 ]] || fail "exit code $code without policies"
grep -q 'not run: out of time.*zero' "$dir/said" || fail "the limit is not kept"
run --gpus 4
[[ $code -eq 2 ]] || fail "exit code $code for more GPUs than there are"
