#!/usr/bin/env bash
# usage: classifier_files.sh PROGRAM DATA SCRATCH LAUNCHER...
# Files in, files out: broken inputs are named, digests agree, results appear where they were asked for.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
program=$1 data=$2 scratch=$3
shift 3
launch=("$@")
failed=0
check() {  # check WHAT command...
  local what=$1
  shift
  if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; failed=1; fi
}
# refuses CODE REGEX args...: the program ends with CODE and one line on stderr that matches
refuses() {
  local want=$1 regex=$2 code=0 text
  shift 2
  text=$("$program" "$@" 2>&1) || code=$?
  [[ $code -eq $want ]] && grep -Eq -- "$regex" <<<"$text" || { echo "exit $code: $text"; return 1; }
}
dir=$scratch/files
rm -rf "$dir" && mkdir -p "$dir"

# Truncated and corrupt inputs.
mkdir "$dir/short" "$dir/corrupt" "$dir/csv" "$dir/idx" "$dir/pair"
head -c 20000 "$data/digits.csv.gz" >"$dir/short/digits.csv.gz"
check "truncated gzip" refuses 1 'error: .*/short/digits.csv.gz: the gzip file is truncated' --data "$dir/short"
{ head -c 2000 "$data/digits.csv.gz"; head -c 3000 /dev/zero; tail -c +5001 "$data/digits.csv.gz"; } >"$dir/corrupt/digits.csv.gz"
check "corrupt gzip" refuses 1 '/corrupt/digits.csv.gz: the gzip file is (corrupt|truncated)' --data "$dir/corrupt"
gzip -dc "$data/digits.csv.gz" | sed '7s/,[0-9]*,/,17,/' >"$dir/csv/digits.csv"
check "pixel out of range" refuses 1 '/csv/digits.csv:7:2: pixel 17 is more than 16' --data "$dir/csv"
printf '\0\0\10\3\0\0\0\2\0\0\0\1\0\0\0\1A' | gzip >"$dir/idx/train-images-idx3-ubyte.gz"
check "labels missing" refuses 1 '/idx/train-labels-idx1-ubyte.gz: no such file' --data "$dir/idx"
printf '\0\0\10\1\0\0\0\2\1\2' >"$dir/idx/train-labels-idx1-ubyte"
check "truncated IDX" refuses 1 '/idx/train-images-idx3-ubyte.gz: truncated.*at byte 17' --data "$dir/idx"
printf 'PNG!\0\0\0\2' >"$dir/idx/train-images-idx3-ubyte.gz"
check "not IDX" refuses 1 '/idx/train-images-idx3-ubyte.gz: not an IDX file' --data "$dir/idx"
check "results cannot be written" refuses 1 '/dev/null/x' --data "$data" --steps 1 --json /dev/null/x/r.json

# One digest for 1 and 2 ranks, another for another seed; the JSON has it too.
common=(--data "$data" --deterministic --digest --steps 30 --quiet)
one=$("$program" "${common[@]}" --json "$dir/one.json" | grep '^digest=')
two=$("${launch[@]}" "$program" "${common[@]}" --json "$dir/two.json" | tr -d '\r' | grep '^digest=')
other=$("$program" "${common[@]}" --seed 2 | grep '^digest=')
check "digest has 16 digits" grep -Eq '^digest=[0-9a-f]{16}$' <<<"$one"
check "same digest on 2 ranks" test "$one" = "$two"
check "another seed, another digest" test "$one" != "$other"
check "digest in the JSON" grep -q "\"digest\": \"${one#digest=}\"" "$dir/two.json"
check "all the work on one rank" grep -q '"samples_per_rank": 1920,' "$dir/one.json"
check "half of the work on each of two" grep -q '"samples_per_rank": 960,' "$dir/two.json"
check "nothing sent by one rank" grep -q '"wire_bytes": 0,' "$dir/one.json"
check "something sent by two" grep -Eq '"wire_bytes": [1-9]' "$dir/two.json"
same_losses() { diff <(sed -n '/"losses"/,/]/p' "$dir/one.json") <(sed -n '/"losses"/,/]/p' "$dir/two.json"); }
check "same losses on 2 ranks" same_losses

# Two runs are compared by their digests.
compare=$(dirname "$0")/../../scripts/compare_digests.py
says() {  # says CODE TEXT A B
  local code=0 text
  text=$("$compare" "$3" "$4" 2>&1) || code=$?
  # shellcheck disable=SC2053  # a pattern
  [[ $code -eq $1 && $text == $2 ]] || { echo "exit $code: $text"; return 1; }
}
every=(--data "$data" --deterministic --steps 12 --digest-every 4 --quiet)
"$program" "${every[@]}" --out "$dir/d1" >/dev/null
"${launch[@]}" "$program" "${every[@]}" --out "$dir/d2" >/dev/null
check "digests of 1 and 2 ranks" says 0 "equal: 3 steps, the last is 12" "$dir/d1" "$dir/d2"
sed '/^8,layer1.bias,/s/[^,]*$/0000000000000000/' "$dir/d1/digests.csv" >"$dir/changed.csv"
check "one tensor of one step differs" says 1 "step 8: layer1.bias differs (state); 1 of 6 tensors differ; the last equal step is 4" "$dir/d1" "$dir/changed.csv"
"$program" "${every[@]}" --seed 2 --out "$dir/d3" >/dev/null
check "another seed differs at once" says 1 "step 4: layer0.weight differs (gradient, weight, state); 6 of 6 tensors differ; no earlier step was compared" "$dir/d1" "$dir/d3"
sed '/^8,layer1.bias,/d' "$dir/d1/digests.csv" >"$dir/less.csv"
check "another model" says 2 "compare_digests: step 8: only one of the runs has layer1.bias" "$dir/d1" "$dir/less.csv"
check "no digests" says 2 "compare_digests: $dir/one.json: not a file of digests" "$dir/one.json" "$dir/d1"
check "no file" says 2 "compare_digests: $dir/none: No such file or directory" "$dir/none" "$dir/d1"

# A trace of both ranks on one clock: each bucket ends nowhere before it has begun everywhere.
"${launch[@]}" "$program" --backend host --data "$data" --steps 10 --trace "$dir/trace.json" --json "$dir/traced.json" >"$dir/traced.log"
sound_trace() {
  python3 - "$dir/trace.json" "$dir/traced.json" <<'END'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
facts = json.load(open(sys.argv[2]))["trace"]
spans = [e for e in events if e["ph"] == "X"]
names = {e["name"] for e in spans}
assert {e["pid"] for e in spans} == {0, 1} and {"linear", "update", "bucket 0"} <= names and "classify" not in names
buckets = [[e for e in spans if e["pid"] == r and e["cat"] == "communication"] for r in (0, 1)]
assert len(buckets[0]) == len(buckets[1]) >= 4
for a, b in zip(*buckets):
    assert a["name"] == b["name"]
    assert min(x["ts"] + x["dur"] for x in (a, b)) >= max(a["ts"], b["ts"]) - 2 * facts["clock_error_us"]
assert 0 < facts["exposed_percent"] <= 100 and facts["dropped_spans"] == 0 and len(facts["ranks"]) == 2
END
}
check "a trace of two ranks" sound_trace
check "exposed communication is said" grep -q '^trace .*communication [0-9.]* % of the time, exposed' "$dir/traced.log"

# Ranks that read different data.
mkdir "$dir/other"
gzip -dc "$data/digits.csv.gz" | sed '9s/^0,0,/0,1,/' >"$dir/other/digits.csv"
differ() {
  local text
  text=$("${launch[@]:0:2}" 1 "${launch[@]:3}" "$program" --data "$data" --steps 1 : "${launch[1]}" 1 "$program" --data "$dir/other" --steps 1 2>&1) && return 1
  grep -q 'the ranks read different data' <<<"$text" || { echo "$text"; return 1; }
}
check "ranks with different data" differ

# A whole run leaves its files.
"$program" --data "$data" --out "$dir/out" --checkpoint "$dir/ckpt" --json "$dir/r.json" >"$dir/log"
for file in out/learning_curve.svg out/predictions.svg out/metrics.csv ckpt/model.safetensors r.json; do
  check "$file is there" test -s "$dir/$file"
  check "$file is announced" grep -q "^wrote    $dir/$file$" "$dir/log"
done
check "a metrics line for each of 190 steps" test "$(wc -l <"$dir/out/metrics.csv")" -eq 191
check "10 looks at the validation pictures" test "$(grep -c '[0-9]$' "$dir/out/metrics.csv")" -eq 10
check "no temporary file is left" test -z "$(find "$dir" -name '*.tmp*')"
accuracy=$(sed -n 's/.*"val_accuracy": \([0-9.]*\).*/\1/p' "$dir/r.json")
check "it learns the digits ($accuracy)" awk "BEGIN { exit !($accuracy >= 0.885) }"
check "help fits 80 columns" test "$("$program" --help | awk 'length > 80' | wc -l)" -eq 0
exit $failed
