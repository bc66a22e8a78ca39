#!/usr/bin/env bash
# usage: resilient_test.sh SCRIPTS SCRATCH
# How run_resilient.sh decides, with a stand-in for mpirun that dies as it is told.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
script=$1/run_resilient.sh dir=$2/resilient
failed=0
check() {
  local what=$1
  shift
  if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; failed=1; fi
}
rm -rf "$dir" && mkdir -p "$dir/bin"
cat >"$dir/bin/mpirun" <<'MPIRUN'
#!/usr/bin/env bash
# Notes its arguments; plays the next line of the script: a code, a step to save, words for stderr.
echo "$*" >>"$PLAY.calls"
read -r code step words <"$PLAY"
sed -i 1d "$PLAY"
if [[ $step != - ]]; then mkdir -p "$PLAY.c/step_$step" && touch "$PLAY.c/step_$step/manifest.json"; fi
[[ -z $words ]] || echo "$words" >&2
exit "$code"
MPIRUN
chmod +x "$dir/bin/mpirun"
play() {  # play NAME 'code step words'... -- arguments: what the script did
  export PLAY=$dir/$1
  shift
  while [[ $1 != -- ]]; do
    echo "$1" >>"$PLAY"
    shift
  done
  shift
  code=0
  PATH="$dir/bin:$PATH" "$script" --wait 0 "$@" -- prog --checkpoint "$PLAY.c" >"$PLAY.out" 2>&1 || code=$?
}
call() { sed -n "$1p" "$PLAY.calls"; }

play goes_on '137 010' '0 -' -- -n 4
check "a failure starts again" test $code -eq 0 -a "$(wc -l <"$PLAY.calls")" -eq 2
check "with --resume" grep -Eq -- '-n 4 prog .* --resume$' <<<"$(call 2)"
check "it says from where" grep -q 'exit code 137; starting again on 4 ranks from step_010' "$PLAY.out"
play 'done' '75 010' -- -n 4
check "75 is passed on" test $code -eq 75
play usage '2 -' -- -n 4
check "2 is passed on" test $code -eq 2 -a "$(wc -l <"$PLAY.calls")" -eq 1
play fewer '1 -' '1 -' '1 -' '0 010' -- -n 4
check "without progress, half the ranks" grep -Eq -- '-n 2 prog' <<<"$(call 3)"
check "and half again" grep -Eq -- '-n 1 prog' <<<"$(call 4)"
play floor '1 -' '1 -' '1 -' '0 -' -- -n 4 --min-ranks 3
check "not fewer than --min-ranks" grep -Eq -- '-n 4 prog' <<<"$(call 4)"
play gives_up '9 -' '9 -' '9 -' '9 -' -- -n 2 --retries 2
check "it gives up with the code" test $code -eq 9 -a "$(wc -l <"$PLAY.calls")" -eq 3
play host '205 010  Remote daemon: [[1,0],2] on node b' '0 -' -- -n 6 --host a:2,b:2,c:2
check "a lost host is left out" grep -Eq -- '-n 4 --host a:2,c:2 prog' <<<"$(call 2)"
for wrong in '' '-n 0' '-n 2 --frobnicate'; do
  code=0
  # shellcheck disable=SC2086
  "$script" $wrong -- prog --checkpoint x >/dev/null 2>&1 || code=$?
  check "usage: '$wrong'" test $code -eq 2
done
code=0
"$script" -n 2 -- prog >/dev/null 2>&1 || code=$?
check "a program without --checkpoint is refused" test $code -eq 2
exit $failed
