#!/usr/bin/env bash
# usage: disks_test.sh PROGRAM DATA SCRATCH SLOW_DISK LAUNCHER...
# Disks that misbehave: slow, full, read-only, gone; and two jobs on one directory. Mounts are made in
# a mount namespace of this test's own; where that cannot be had they are left out, and it says so.
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2317  # functions are called through check
set -euo pipefail
if [[ -z ${DISKS_TEST_INSIDE:-} ]] && [[ $(id -u) -eq 0 ]] && unshare --mount true 2>/dev/null; then
  DISKS_TEST_INSIDE=mounts exec unshare --mount "$0" "$@"
fi
program=$1 data=$2 dir=$3/disks slow=$4
shift 4
launch=("$@") # ends with the option for the number of ranks
failed=0
check() {  # check WHAT command...
  local what=$1
  shift
  if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; cat "$dir/out"; failed=1; fi
}
train=("$program" --data "$data" --backend host --deterministic --quiet --digest)
run() {  # run args...: its exit code in `code`, everything that it says in out
  code=0
  "${launch[@]}" 2 "${train[@]}" "$@" >"$dir/out" 2>&1 || code=$?
}
start() { "${launch[@]}" 2 "${train[@]}" "$@" >"$dir/out" 2>&1 & pid=$!; }
until_true() {  # until_true command...: for at most 20 s
  local i
  for ((i = 0; i < 200; ++i)); do
    ! "$@" >/dev/null 2>&1 || return 0
    sleep 0.1
  done
  return 1
}
saved() { compgen -G "$1/step_*/manifest.json"; }
one_error() { [[ $code -eq 1 && $(grep -c 'error: ' "$dir/out") -eq 1 ]] && grep -q -- "$1" "$dir/out"; }
rm -rf "$dir" && mkdir -p "$dir"

# The other rank waits for the disk; that is no hang.
code=0
POLYRANK_HANG_DEADLINE=4 POLYRANK_TEST_FSYNC=5 "${launch[@]}" 2 env LD_PRELOAD="$slow" "${train[@]}" --steps 10 \
  --checkpoint "$dir/slow" >"$dir/out" 2>&1 || code=$?
check "a slow disk is no hang" test $code -eq 0 -a "$(find "$dir/slow" -name manifest.json | wc -l)" -eq 1

# Gone, as when a network file system is no longer mounted; then back.
start --epochs 2000 --save-every 20 --checkpoint "$dir/gone"
until_true saved "$dir/gone"
mv "$dir/gone" "$dir/elsewhere"
check "a directory that is gone is a warning" until_true grep -q "was not saved: .*$dir/gone: this directory is gone; training goes on" "$dir/out"
check "it is not made anew" test ! -e "$dir/gone"
mv "$dir/elsewhere" "$dir/gone"
newest=$(cd "$dir/gone" && echo step_*)
newest=${newest##* }
newer() { local last; last=$(saved "$dir/gone" | tail -n 1); [[ $last > $dir/gone/$newest/manifest.json ]]; }
check "once it is back, saves succeed" until_true newer
cp "$dir/out" "$dir/out.first"
# A second job there is refused, the first goes on.
run --epochs 2000 --save-every 20 --checkpoint "$dir/gone" --resume
check "two jobs on one directory" one_error "another job saves its checkpoints here"
kill -USR2 $pid
code=0
wait $pid || code=$?
check "the first job saves and stops" test $code -eq 75

if [[ ${DISKS_TEST_INSIDE:-} != mounts ]]; then
  echo "full and read-only disks are left out: they need root and mount namespaces"
  exit $failed
fi
mkdir "$dir/disk"
mount -t tmpfs -o size=1m none "$dir/disk" # one checkpoint has 0.6 MB
run --steps 30 --save-every 10 --checkpoint "$dir/disk/c"
check "a full disk: the job goes on and ends with 1" one_error "No space left on device"
check "... it says so each time" test "$(grep -c 'was not saved: .*No space left on device' "$dir/out")" -ge 2
check "... nothing is left but the checkpoint that was complete" test "$(cd "$dir/disk/c" && echo step_*)" = step_000000000010
cp -r "$dir/disk/c" "$dir/c"
run --steps 40 --checkpoint "$dir/c" --resume
moved=$(grep '^digest=' "$dir/out")
run --steps 40
check "... which goes on elsewhere, with the same bits" test "$moved" = "$(grep '^digest=' "$dir/out")"
mount -o remount,ro "$dir/disk"
run --steps 5 --checkpoint "$dir/disk/d"
check "a read-only disk is one clear error" one_error "Read-only file system"
umount "$dir/disk"
exit $failed
