#!/usr/bin/env bash
# usage: scripts/run_resilient.sh -n RANKS [OPTION...] -- PROGRAM ARGUMENT... --checkpoint DIR ...
#
# Runs PROGRAM under mpirun and, when the job dies, starts it again from its last checkpoint:
# `--resume` is added to its arguments. A host that mpirun lost is left out from then on. Where no
# checkpoint was added since the last start, half as many ranks are taken.
#
#   scripts/run_resilient.sh -n 4 -- build/bin/train_classifier --save-every 50 --checkpoint run/c
#
#   -n RANKS         ranks at first
#   --host LIST      host:slots,host:slots,... for mpirun; without it, this host
#   --retries R      starts after the first (default 5) that may fail one after the other without a
#                    new checkpoint
#   --min-ranks M    fewest ranks (default 1)
#   --wait S         seconds before a new start (default 1)
#   --mpi OPTION     one more argument for mpirun; may be given several times
#   --help           this text
#
# Exits with the program's code where that is 0 (done), 2 (wrong arguments: again would not help) or
# 75 (it was asked to save and stop), else with the code of the last failure.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

me=run_resilient
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks='' hosts='' retries=5 min_ranks=1 pause=1 more=()
while [[ $# -gt 0 && $1 != -- ]]; do
  case $1 in
    -n) positive_number "$1" "${2:-}"; ranks=$2; shift ;;
    --host) [[ -n ${2:-} ]] || usage_error "--host needs a list"; hosts=$2; shift ;;
    --retries) positive_number "$1" "${2:-}"; retries=$2; shift ;;
    --min-ranks) positive_number "$1" "${2:-}"; min_ranks=$2; shift ;;
    --wait) [[ ${2:-} =~ ^[0-9]+$ ]] || usage_error "--wait needs seconds"; pause=$2; shift ;;
    --mpi) [[ -n ${2:-} ]] || usage_error "--mpi needs an argument"; more+=("$2"); shift ;;
    --help) print_help "$0" ;;
    *) usage_error "unknown option $1" ;;
  esac
  shift
done
[[ -n $ranks ]] || usage_error "-n RANKS is needed"
[[ $# -ge 2 ]] || usage_error "-- PROGRAM is needed"
shift

directory=''
resume=(--resume)
previous=''
for argument in "$@"; do
  [[ $previous != --checkpoint ]] || directory=$argument
  [[ $argument != --checkpoint=* ]] || directory=${argument#--checkpoint=}
  [[ $argument != --resume ]] || resume=()
  previous=$argument
done
[[ -n $directory ]] || usage_error "the program needs --checkpoint DIR, or there is nothing to go on from"

# The newest complete checkpoint: the folder of the highest step that has a manifest.
newest() {
  local page found=''
  for page in "$directory"/step_*/manifest.json; do
    [[ ! -f $page ]] || found=${page%/manifest.json}
  done
  echo "${found##*/}"
}

allow_root
log=$(mktemp)
mpirun_pid=''
trap 'rm -f "$log"' EXIT
# mpirun passes on what we are told.
for signal in TERM INT USR1 USR2; do
  trap '[[ -z $mpirun_pid ]] || kill -'"$signal"' "$mpirun_pid" 2>/dev/null' "$signal"
done

# One run; its code in `code`. Signals end a wait, not the run.
run() {
  local line=(mpirun "${mpirun_flags[@]}" -n "$ranks" ${hosts:+--host "$hosts"} "${more[@]}" "$@")
  "${line[@]}" 2> >(tee "$log" >&2) &
  mpirun_pid=$!
  code=0
  wait "$mpirun_pid" || code=$?
  while kill -0 "$mpirun_pid" 2>/dev/null; do wait "$mpirun_pid" || true; done
  wait "$mpirun_pid" && code=0 || code=$?
  mpirun_pid=''
}

failures=0
while :; do
  before=$(newest)
  run "$@" "${resume[@]}"
  case $code in
    0 | 2 | 75) exit "$code" ;;
  esac
  after=$(newest)
  if [[ $after == "$before" ]]; then failures=$((failures + 1)); else failures=0; fi
  if [[ $failures -gt $retries ]]; then
    die_code=$code
    echo "$me: exit code $code, and no new checkpoint in $failures starts: giving up" >&2
    exit "$die_code"
  fi
  # A host whose daemon mpirun lost.
  lost=$(sed -nE 's/.*Remote daemon: .* on node ([^ ]+).*/\1/p' "$log" | head -n 1)
  if [[ -n $lost && -n $hosts ]]; then
    kept=$(tr ',' '\n' <<<"$hosts" | grep -vE "^$lost(:[0-9]+)?\$" | paste -sd, || true)
    if [[ -n $kept && $kept != "$hosts" ]]; then
      hosts=$kept
      slots=0
      while IFS= read -r entry; do
        if [[ $entry == *:* ]]; then slots=$((slots + ${entry##*:})); else slots=$((slots + 1)); fi
      done < <(tr ',' '\n' <<<"$hosts")
      [[ $slots -ge $ranks ]] || ranks=$slots
      say "host $lost is lost; going on without it" >&2
      failures=0
    fi
  elif [[ $failures -gt 1 && $((ranks / 2)) -ge $min_ranks ]]; then
    ranks=$((ranks / 2))
  fi
  say "exit code $code; starting again on $ranks ranks from ${after:-the start}" >&2
  sleep "$pause"
done
