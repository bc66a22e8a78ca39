#!/usr/bin/env bash
# usage: classifier_test.sh PROGRAM DATA SCRATCH SCRIPTS LAUNCHER...
# What people see of checkpoints: save here, go on there; SIGUSR2; ranks that are killed at random
# moments (POLYRANK_SOAK_KILLS of them, by default 3: with 1, 2 and 4 ranks); damaged files;
# scripts/run_resilient.sh.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
program=$1 data=$2 scratch=$3 scripts=$4
shift 4
launch=("$@") # ends with the option for the number of ranks
kills=${POLYRANK_SOAK_KILLS:-3}
steps=$((120 + 40 * kills)) # of the runs that are killed
failed=0
check() {  # check WHAT command...
  local what=$1
  shift
  if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; failed=1; fi
}
dir=$scratch/checkpoints
rm -rf "$dir" && mkdir -p "$dir"
run() {  # run RANKS args...
  local ranks=$1
  shift
  "${launch[@]}" "$ranks" "$program" --data "$data" --backend host --deterministic --quiet --digest "$@"
}
start() {  # start RANKS args...: the same in the background; its mpirun is $pid, its ranks children of that
  local ranks=$1
  shift
  "${launch[@]}" "$ranks" "$program" --data "$data" --backend host --deterministic --quiet --digest "$@" >"$dir/out" 2>&1 &
  pid=$!
}
saved() {  # saved DIR: waits for a checkpoint there
  local i
  for ((i = 0; i < 300; ++i)); do
    ls "$1"/step_*/manifest.json >/dev/null 2>&1 && return
    sleep 0.1
  done
}
digest() { run "$@" 2>"$dir/err" | tr -d '\r' | grep '^digest='; }

whole=$(digest 1 --steps 40)
check "the run that never stopped has a digest" grep -Eq '^digest=[0-9a-f]{16}$' <<<"$whole"
digest 2 --steps 20 --save-every 20 --checkpoint "$dir/a" >/dev/null
check "the checkpoint is there" test -f "$dir/a/step_000000000020/manifest.json"
check "2 ranks to 4: the same bits" test "$whole" = "$(digest 4 --steps 40 --checkpoint "$dir/a" --resume)"

# Fragments and weights, read by other means than ours.
check "any reader finds the weights" python3 - "$dir/a" <<'PYTHON'
import json, struct, sys, pathlib
def read(path):
    raw = pathlib.Path(path).read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    return {k: (v["shape"], raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in head.items()}
root = pathlib.Path(sys.argv[1])
whole = read(root / "model.safetensors")
step = root / "step_000000000040"
parts = {}
for shard in step.glob("shard_*.safetensors"):
    for name, (shape, data) in read(shard).items():
        tensor, at = name.rsplit("@", 1)
        parts.setdefault(tensor, []).append((int(at), data))
page = json.loads((step / "manifest.json").read_text())["content"]
assert page["step"] == 40
assert len(page["tensors"]) == 3 * len(whole)
for t in page["tensors"]:
    data = b"".join(d for _, d in sorted(parts[t["name"]]))
    n = 4
    for d in t["shape"]: n *= d
    assert len(data) == n, t
    if t["name"] in whole:
        assert whole[t["name"]] == (t["shape"], data), t
PYTHON

# A flipped bit: file and tensor are named, the one before is offered and loads.
digest 2 --steps 30 --save-every 10 --checkpoint "$dir/b" >/dev/null
shard=$dir/b/step_000000000030/shard_1.safetensors
size=$(stat -c %s "$shard")
printf '\xff' | dd of="$shard" bs=1 seek=$((size - 2)) conv=notrunc status=none
code=0
run 2 --steps 40 --checkpoint "$dir/b" --resume >"$dir/out" 2>&1 || code=$?
check "a flipped bit ends the start with 1" test $code -eq 1
check "it names file, tensor and way out" grep -Eq "shard_1.safetensors: the data of 'optimizer/1/layer2.bias@[0-9]+' are damaged.*of step 20, is complete: move" "$dir/out"
mv "$dir/b/step_000000000030" "$dir/broken"
check "the one before goes on" test "$whole" = "$(digest 1 --steps 40 --checkpoint "$dir/b" --resume)"

# Weights from a file.
check "--init reads what was exported" bash -c "'$program' --data '$data' --backend host --steps 1 --init '$dir/a/model.safetensors' | grep -q '^init .*: every weight of the model'"

# What every rank has, every rank writes its part of; the loss scaler goes along.
half=(--zero 0 --precision fp16 --checkpoint "$dir/h")
digest 2 "${half[@]}" --steps 10 >/dev/null
sizes=$(stat -c %s "$dir/h/step_000000000010"/shard_*.safetensors | xargs)
check "replicated state is written by all ranks" test "$((${sizes% *} > 200000))$((${sizes#* } > 200000))" = 11
check "the loss scaler is in the notes" grep -Eq '"loss scaler": "[0-9.e+]+ 10 [0-9]+ 0"' "$dir/h/step_000000000010/manifest.json"
check "fp16 goes on with the same bits" test "$(digest 2 --zero 0 --precision fp16 --steps 20)" = "$(digest 2 "${half[@]}" --steps 20 --resume)"

# A directory in which nothing can be made.
code=0
run 2 --steps 5 --checkpoint /dev/null/x >"$dir/out" 2>&1 || code=$?
check "a useless directory is one clear error" test $code -eq 1 -a "$(grep -c error: "$dir/out")" -eq 1

# SIGUSR2 to mpirun: saved, 75, and the same bits after all. Where the job is watched, the watchdog
# takes the signal; without it (deadline 0) launch::save_request does.
for deadline in 120 0; do
  code=0
  export POLYRANK_HANG_DEADLINE=$deadline
  start 2 --epochs 2000 --save-every 100 --checkpoint "$dir/u$deadline"
  saved "$dir/u$deadline"
  kill -USR2 $pid
  wait $pid || code=$?
  check "SIGUSR2 ends the job with 75 (deadline $deadline)" test $code -eq 75
  check "it says where it saved" grep -q "asked to stop: saved in $dir/u$deadline" "$dir/out"
  check "nothing unfinished is left" test "$(find "$dir/u$deadline" -name manifest.json | wc -l)" -eq "$(find "$dir/u$deadline" -name 'step_*' | wc -l)"
done
unset POLYRANK_HANG_DEADLINE

# One rank killed at random moments; each time the job goes on from the last complete checkpoint.
part=(--epochs 200 --steps "$steps" --save-every 3 --checkpoint "$dir/k" --resume)
for ((i = 0; i < kills; ++i)); do
  start $((1 + i % 3 + (i % 3 == 2))) "${part[@]}"
  sleep "0.$((RANDOM % 6 + 3))"
  victim=$(pgrep -P "$pid" -f train_classifier | shuf -n 1 || true)
  [[ -z $victim ]] || kill -KILL "$victim" 2>/dev/null || true
  wait $pid 2>/dev/null || true
  if grep -q 'error: .*\(damaged\|missing\|no valid\)' "$dir/out"; then
    cat "$dir/out"
    check "kill $i leaves checkpoints that load" false
  fi
done
never=$(digest 2 --epochs 200 --steps "$steps")
check "$kills kills later, the bits of the run that never stopped" test "$never" = "$(digest 2 "${part[@]}")"
check "no more than two checkpoints stay" test "$(find "$dir/k" -name manifest.json | wc -l)" -eq 2

# run_resilient.sh does that by itself.
"$scripts/run_resilient.sh" -n 2 --wait 0 -- "$program" --data "$data" --backend host --deterministic --quiet --digest \
  --epochs 200 --steps "$steps" --save-every 3 --checkpoint "$dir/r" >"$dir/out" 2>"$dir/err" &
pid=$!
saved "$dir/r"
victim=$(pgrep -f "checkpoint $dir/r" | while read -r p; do
  [[ $(cat "/proc/$p/comm" 2>/dev/null) == train_classifie ]] && echo "$p"
done | head -n 1 || true)
[[ -z $victim ]] || kill -KILL "$victim"
code=0
wait $pid || code=$?
check "run_resilient ends with 0" test $code -eq 0
check "it started again" grep -q 'run_resilient: exit code .*; starting again on 2 ranks from step_' "$dir/err"
check "to the same end" grep -q "$never" "$dir/out"
exit $failed
