#!/usr/bin/env bash
# usage: backends_test.sh PROGRAM DATA SCRATCH SCRIPTS
# Saves on one backend and goes on with another, on a GPU and without: the same bits on one backend
# in deterministic mode, losses within 1e-5 across. The files in Python's safetensors, both ways.
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2317  # functions are called through check
set -euo pipefail
program=$1 data=$2 dir=$3/backends scripts=$4
failed=0
check() {  # check WHAT command...
  local what=$1
  shift
  if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; failed=1; fi
}
rm -rf "$dir" && mkdir -p "$dir"
run() {  # run BACKEND RANKS args...
  local backend=$1 ranks=$2
  shift 2
  "$scripts/gpu_ranks.sh" "$ranks" "$program" --data "$data" --backend "$backend" --deterministic --quiet --digest "$@"
}
digest() { run "$@" 2>"$dir/err" | tr -d '\r' | grep '^digest=' || tail -5 "$dir/err"; }

for backend in host cuda; do
  digest $backend 2 --steps 20 --json "$dir/$backend.json" >"$dir/$backend.whole"
  digest $backend 2 --steps 10 --save-every 5 --checkpoint "$dir/$backend" >"$dir/$backend.half"
done
check "host and CUDA differ in bits" bash -c "! cmp -s '$dir/host.whole' '$dir/cuda.whole'"
for pair in 'host cuda' 'cuda host' 'cuda cuda'; do  # host to host: tests/examples
  read -r from to <<<"$pair"
  cp -r "$dir/$from" "$dir/$from-$to"
  if [[ $from != "$to" ]]; then
    check "$from to $to: what was saved is what is loaded" \
      test "$(cat "$dir/$from.half")" = "$(digest "$to" 1 --steps 10 --checkpoint "$dir/$from-$to" --resume)"
  fi
  end=$(digest "$to" 1 --steps 20 --checkpoint "$dir/$from-$to" --resume --json "$dir/$from-$to.json")
  [[ $from != "$to" ]] || check "$from to $to: the bits of the run that never stopped" test "$(cat "$dir/$to.whole")" = "$end"
done
# Sharded on CUDA, at one stage and on to another.
digest cuda 2 --zero 2 --steps 10 --checkpoint "$dir/zero" >"$dir/out"
check "CUDA, ZeRO 2 on 2 ranks to ZeRO 1 on 4: the same bits" \
  test "$(cat "$dir/cuda.whole")" = "$(digest cuda 4 --zero 1 --steps 20 --checkpoint "$dir/zero" --resume)"

check "losses within 1e-5 of the run that never stopped" python3 - "$dir" <<'PYTHON'
import json, sys
loss = lambda name: json.load(open(f"{sys.argv[1]}/{name}.json"))["final"]["loss"]
worst = 0
for run in ("host-cuda", "cuda-host", "cuda-cuda"):
    for whole in ("host", "cuda"):
        worst = max(worst, abs(loss(run) / loss(whole) - 1))
print(json.dumps({"check": "loss at step 20 over all cases", "worst_relative": worst}))
sys.exit(worst > 1e-5)
PYTHON

code=0
"$scripts/gpu_ranks.sh" 2 "$program" --data "$data" --backend cuda --quiet --epochs 2000 --save-every 100 \
  --checkpoint "$dir/u" >"$dir/out" 2>&1 &
pid=$!
for ((i = 0; i < 300; ++i)); do
  ! ls "$dir"/u/step_*/manifest.json >/dev/null 2>&1 || break
  sleep 0.1
done
kill -USR2 $pid
wait $pid || code=$?
check "SIGUSR2 on CUDA: saved, 75" test $code -eq 75

if python3 -c 'import safetensors.numpy' 2>/dev/null; then
  check "Python opens the weights, and what Python writes is read here" python3 - "$dir" <<'PYTHON'
import sys, numpy, safetensors.numpy as st
d = sys.argv[1]
w = st.load_file(f"{d}/cuda/model.safetensors")
assert w["layer0.weight"].shape[1] in (64, 784) and all(numpy.isfinite(v).all() for v in w.values()), w
st.save_file({k: v.astype(numpy.float64) for k, v in w.items()}, f"{d}/python.safetensors")
for rank in range(2):
    parts = st.load_file(f"{d}/cuda/step_000000000010/shard_{rank}.safetensors")
    for name, part in parts.items():
        tensor, at = name.rsplit("@", 1)
        if tensor in w:
            assert (w[tensor].reshape(-1)[int(at):int(at) + part.size] == part).all(), name
PYTHON
  check "... on both backends" bash -c "for b in host cuda; do '$program' --data '$data' --backend \$b --steps 1 \
    --init '$dir/python.safetensors' | grep '^init .*: every weight of the model' || exit 1; done"
else
  echo "skipped: no Python module safetensors"
fi
exit $failed
