#!/usr/bin/env bash
# usage: scripts/sanitize.sh [--tool NAME] [--out DIR] N COMMAND...
#
# Runs COMMAND as N ranks under compute-sanitizer, with a log for each rank, and says which rank
# found what first. Ranks share a GPU where there are fewer (scripts/gpu_ranks.sh). Exits with 1 if
# any rank found an error or failed.
#
#   --tool NAME  memcheck (default), racecheck, initcheck or synccheck
#   --out DIR    where the logs go (default: sanitize): DIR/rank.0.log, ...
#   --help       this text
#
# memcheck finds accesses outside of allocations, racecheck hazards in shared memory only, initcheck
# reads of memory that nobody wrote.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

me=sanitize
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tool=memcheck
out=sanitize
while [[ ${1:-} == --* ]]; do
  case $1 in
    --tool) tool=${2:-}; shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    --help) print_help "$0" ;;
    *) usage_error "unknown option $1" ;;
  esac
  shift
done
[[ $tool =~ ^(memcheck|racecheck|initcheck|synccheck)$ ]] ||
  usage_error "--tool is memcheck, racecheck, initcheck or synccheck, not '$tool'"
positive_number N "${1:-}"
ranks=$1
shift
[[ $# -gt 0 ]] || usage_error "no command"
command -v compute-sanitizer >/dev/null ||
  die "compute-sanitizer not found; it is part of the CUDA toolkit (bin/ of it belongs in PATH)"

mkdir -p "$out"
rm -f "$out"/rank.*.log
code=0
# A guard would take the slowness of the tool for a hang.
POLYRANK_HANG_DEADLINE=${POLYRANK_HANG_DEADLINE:-0} "$root/scripts/gpu_ranks.sh" "$ranks" \
  compute-sanitizer --tool "$tool" --error-exitcode 1 --log-file "$out/rank.%q{OMPI_COMM_WORLD_RANK}.log" \
  "$@" || code=$?

bad=0
for ((rank = 0; rank < ranks; ++rank)); do
  log=$out/rank.$rank.log
  if [[ ! -f $log ]]; then
    say "rank $rank wrote no log"
    bad=1
  elif ! grep -q 'ERROR SUMMARY: 0 errors' "$log" && ! grep -q 'RACECHECK SUMMARY: 0 hazards' "$log"; then
    first=$(grep -m1 -E '^=+ +[A-Z][a-z].*' "$log" | sed 's/^=* *//' || true)
    say "rank $rank: $(grep -oE '(ERROR|RACECHECK) SUMMARY: .*' "$log" | tail -1); first: ${first:-see $log}"
    bad=1
  else
    say "rank $rank: clean"
  fi
done
say "logs: $out/rank.*.log; the command left with $code"
[[ $bad -eq 0 && $code -eq 0 ]]
