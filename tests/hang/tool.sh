#!/usr/bin/env bash
# tool.sh POLYRANK_HANG SOURCE MPIRUN...: report on a dead job, explain, watch, collect, attach,
# SIGUSR1, SIGUSR2.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
hang=$1 source=$2
shift 2
mpirun=("$@" -n 3)
folder=$(mktemp -d)
job=
trap '[[ -z $job ]] || kill -KILL "$job" 2>/dev/null || true; rm -rf "$folder"' EXIT
export POLYRANK_HANG_DIR=$folder/rings
mkdir "$POLYRANK_HANG_DIR"

fail() { echo "tool.sh: $*" >&2; exit 1; }
expect() {  # expect WANTED_CODE REGEX COMMAND...
  local want=$1 regex=$2 code=0 out
  shift 2
  out=$("$@" 2>&1) || code=$?
  [[ $code == "$want" ]] || fail "$*: exit code $code, expected $want: $out"
  grep -Eq -- "$regex" <<<"$out" || fail "$*: nothing matches $regex: $out"
}

# A job that hangs: seen from outside while it lives. (mpirun sends SIGKILL a second after SIGTERM; a
# busy machine may need longer to hear the first.)
OMPI_MCA_odls_base_sigkill_timeout=3 POLYRANK_HANG_DEADLINE=60 "${mpirun[@]}" "$hang" inject sleep --rank 1 >"$folder/log" 2>&1 &
job=$!
for ((i = 0; i < 200; ++i)); do
  grep -q 'fault now' "$folder/log" && break
  sleep 0.1
done
sleep 2.5
expect 82 'HANG verdict NEVER_ENTERED .*rank 1 ' "$hang" report "$POLYRANK_HANG_DIR"
expect 82 'HANG verdict' "$hang" report --quiet --json "$folder/v.json" --svg "$folder/v.svg" \
  --trace "$folder/t.json"
expect 0 'ranks 0 1 2, unfinished 2' python3 -c '
import json, sys
spans = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X"]
print("ranks", *sorted({e["pid"] for e in spans}), end=", ")
print("unfinished", sum(e["name"].startswith("unfinished: bucket 0") for e in spans))
assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)' "$folder/t.json"
grep -q '"suspects": \[1\]' "$folder/v.json" || fail "JSON without the suspect"
grep -q '<svg' "$folder/v.svg" || fail "no picture"
expect 0 'in all_reduce #16' "$hang" watch --once
expect 0 '3 flight recorders, threads of 3 processes' "$hang" collect --to "$folder/all"
expect 82 'rank 1 ' "$hang" report "$folder"/all/*
expect 0 'not known without flight recorders' "$hang" attach
mkdir "$folder/bin" # GPUs whose power tells: two wait in a collective, one does not
printf '#!/bin/sh\nprintf "0, 100, 0, 180.5, 700.0\\n1, 0, 0, 75.1, 700.0\\n2, 100, 1, 190.0, 700.0\\n"\n' \
  >"$folder/bin/nvidia-smi"
chmod +x "$folder/bin/nvidia-smi"
PATH=$folder/bin:$PATH expect 0 'GPU 1 is the odd one out' "$hang" attach
[[ $(stat -c %a "$POLYRANK_HANG_DIR"/*.0.ring) == 600 ]] || fail "a ring that others can read"
kill -USR1 "$(pgrep -P "$job" -f 'inject sleep' | head -1)"
sleep 0.5
grep -q 'last operations' "$folder/log" || fail "SIGUSR1 printed nothing"
kill -TERM "$job"
wait "$job" && fail "a terminated job ended well"
job=
[[ -z $(ls "$POLYRANK_HANG_DIR") ]] || fail "left behind by SIGTERM: $(ls "$POLYRANK_HANG_DIR")"

# A killed rank: its last words are there afterwards, and what is left is named.
expect 137 'HANG verdict RANK_DEAD .*rank 1 ' env POLYRANK_HANG_DEADLINE=30 \
  "${mpirun[@]}" "$hang" inject kill --rank 1
expect 80 'RANK_DEAD .*rank 1 ' "$hang" report "$POLYRANK_HANG_DIR"
expect 80 'its processes are gone: rm .*/rings/polyrank-[^ ]*\.\* removes' "$hang" report
rm -f "$POLYRANK_HANG_DIR"/*

# A verdict runs a command with the report.
expect 81 'HANG verdict MISMATCH' "${mpirun[@]}" "$hang" inject root --rank 1 \
  --on-verdict "cp \"\$1\" '$folder/told.json'"
grep -q '"verdict": "MISMATCH"' "$folder/told.json" || fail "--on-verdict: $(cat "$folder/told.json")"
rm -f "$POLYRANK_HANG_DIR"/*

# A rank that throws ends the job with its error; nothing is left.
expect 1 'error: deliberate failure' "${mpirun[@]}" "$hang" inject throw --rank 1
[[ -z $(ls "$POLYRANK_HANG_DIR") ]] || fail "left behind by an error: $(ls "$POLYRANK_HANG_DIR")"

# SIGUSR2 asks to save.
"${mpirun[@]}" "$hang" inject save --steps 100000 >"$folder/log" 2>&1 &
job=$!
sleep 2
kill -USR2 "$job"
code=0
wait "$job" || code=$?
job=
[[ $code == 75 ]] || fail "after SIGUSR2 the exit code is $code, expected 75: $(cat "$folder/log")"
[[ -z $(ls "$POLYRANK_HANG_DIR") ]] || fail "left behind: $(ls "$POLYRANK_HANG_DIR")"

# Off, and refused.
expect 0 '' env POLYRANK_HANG_DEADLINE=0 "${mpirun[@]}" "$hang" inject none
expect 2 'must be a number of seconds' env POLYRANK_HANG_DEADLINE=soon "${mpirun[@]}" "$hang" inject none
expect 1 'cannot make' env POLYRANK_HANG_DIR=/nonexistent "${mpirun[@]}" "$hang" inject none

# explain.
expect 0 'NEVER_ENTERED \(exit code 82\)' "$hang" explain 82
expect 0 'P2P_CYCLE \(exit code 83\)' "$hang" explain p2p_cycle
expect 2 'is no verdict' "$hang" explain 81x
printf 'a\nnode1:12:34 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0\n' >"$folder/nccl.log"
expect 0 'line 2 .*Duplicate GPU' "$hang" explain --log "$folder/nccl.log"
# What real failures of NCCL look like.
while read -r log cause; do
  expect 0 "most likely: $cause" "$hang" explain --log "$source/tests/hang/logs/$log.log"
done <<'END'
duplicate_gpu two ranks use one GPU
wrong_interface NCCL_SOCKET_IFNAME names no interface
killed_peer a peer process ended or was killed
wrong_network NCCL_NET .* names a network that this host does not have
out_of_memory a GPU or the host has too little memory
wrong_root the root of a broadcast or reduce is no rank
dead_root nobody listens where a rank looks for another one
missing_rank not all ranks came to make a communicator
END
expect 0 '1 of 2 ranks began .*missing: rank 1' "$hang" explain --log "$source/tests/hang/logs/missing_rank.log"
expect 1 'no known message' "$hang" explain --log "$source/LICENSE"

# The table in the docs is the program's.
sed -n '/^<!-- verdicts -->/,/^<!-- end of verdicts -->/p' "$source/docs/hangs.md" | grep '^|' >"$folder/docs"
"$hang" explain --table >"$folder/table"
diff "$folder/table" "$folder/docs" || fail "docs/hangs.md: paste the output of polyrank_hang explain --table"
