#!/usr/bin/env bash
# usage: lost_host_test.sh PROGRAM DATA SCRATCH SCRIPTS
# run_resilient.sh on a made-up cluster of two hosts, one of which dies: the job goes on on the other,
# from the last checkpoint, to the bits of a run that never stopped.
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2317  # functions are called through check
set -euo pipefail
program=$1 data=$2 dir=$3/lost_host scripts=$4
if [[ $(id -u) -ne 0 ]] || ! command -v ip >/dev/null || ! unshare --net true 2>/dev/null; then
  echo "a made-up cluster needs root, iproute2 and network namespaces"
  exit 77
fi
failed=0
check() {  # check WHAT command...
  local what=$1
  shift
  if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; failed=1; fi
}
rm -rf "$dir" && mkdir -p "$dir"
train=("$program" --data "$data" --backend host --deterministic --quiet --digest --epochs 200 --steps 400)
whole=$("${train[@]}" | grep '^digest=')
"$scripts/fake_cluster.sh" --alone 2 2 -- "$scripts/run_resilient.sh" -n 4 --host 10.77.0.1:2,10.77.0.2:2 --wait 0 -- \
  "${train[@]}" --save-every 10 --checkpoint "$dir/c" >"$dir/out" 2>"$dir/err" &
pid=$!
for ((i = 0; i < 200; ++i)); do
  ! compgen -G "$dir/c/step_*/manifest.json" >/dev/null || break
  sleep 0.1
done
ip netns pids "polyrank-$pid-node2" | xargs -r kill -KILL
code=0
wait $pid || code=$?
check "it ends with 0" test $code -eq 0
check "without the lost host" grep -q 'run_resilient: host 10.77.0.2 is lost; going on without it' "$dir/err"
check "on the ranks that are left, from a checkpoint" grep -q 'starting again on 2 ranks from step_' "$dir/err"
check "to the same bits" grep -q "$whole" "$dir/out"
[[ $failed -eq 0 ]] || cat "$dir/err"
exit $failed
