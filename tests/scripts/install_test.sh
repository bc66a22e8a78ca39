#!/usr/bin/env bash
# install_test.sh SCRIPTS: what lib.sh does about missing packages, with false apt, dpkg and id.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

scripts=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "install_test: $*" >&2
  exit 1
}

# tool NAME BODY: a command of this name, first in the PATH.
tool() {
  mkdir -p "$work/bin"
  printf '#!/bin/bash\n%s\n' "$2" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

# on_machine USER_ID "INSTALLED..." "OFFERED..." yes|no: installs alpha, and the photos if it can.
on_machine() {
  tool id "echo $1"
  tool dpkg-query "[[ ' $2 ' == *\" \${!#} \"* ]] && echo -n installed"
  tool apt-get "echo \"\$@\" >>$work/apt; [[ \$* != *install* || ' $3 ' == *\" \${!#} \"* ]]"
  : >"$work/apt"
  # shellcheck disable=SC2016
  code=0 output=$(PATH=$work/bin:$PATH me=x bash -euo pipefail -c \
    'source "$0/lib.sh"; install_packages "$1" alpha' "$scripts" "$4" 2>&1) || code=$?
}
photos=dataset-fashion-mnist

on_machine 0 "alpha $photos" "" yes
[[ $code == 0 && -z $output && ! -s $work/apt ]] || fail "all there: $code $output"

on_machine 0 "" "alpha $photos" no
[[ $code == 1 && $output == "x: missing, and --no-install given: alpha $photos" ]] ||
  fail "--no-install: $code $output"
[[ ! -s $work/apt ]] || fail "--no-install called apt-get"

on_machine 1000 "" "alpha $photos" yes
[[ $code == 1 && $output == "x: missing packages; run: sudo apt-get install -y alpha $photos" ]] ||
  fail "not root: $code $output"

on_machine 0 "" "alpha $photos" yes
[[ $code == 0 && $output == "x: installing: alpha
x: installing: $photos" ]] || fail "root: $code $output"
if grep -q update "$work/apt"; then fail "new package lists without need"; fi

on_machine 0 "" "alpha" yes
[[ $code == 0 && $output == *"$photos cannot be had here" ]] || fail "no photos: $code $output"
grep -q update "$work/apt" || fail "no new package lists before giving up"

on_machine 0 "" "" yes
[[ $code == 1 && $output == *"x: apt-get could not install alpha" ]] || fail "nothing: $code $output"

# Without the photos alone the work goes on, on the digits.
on_machine 0 "alpha" "" no
[[ $code == 0 && -z $output ]] || fail "--no-install, only the photos missing: $code $output"
on_machine 1000 "alpha" "$photos" yes
[[ $code == 0 && ! -s $work/apt ]] || fail "not root, only the photos missing: $code $output"
