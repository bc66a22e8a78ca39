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

# on_machine USER_ID "INSTALLED..." "OFFERED..." yes|no: installs alpha and the photos there.
on_machine() {
  tool id "echo $1"
  tool dpkg-query "[[ ' $2 ' == *\" \${!#} \"* ]] && echo -n installed"
  tool apt-cache "[[ ' $3 ' == *\" \$2 \"* ]]"
  tool apt-get "echo \"\$@\" >>$work/apt"
  : >"$work/apt"
  # shellcheck disable=SC2016
  code=0 output=$(PATH=$work/bin:$PATH me=x bash -euo pipefail -c \
    'source "$0/lib.sh"; install_packages "$1" alpha dataset-fashion-mnist' "$scripts" "$4" 2>&1) || code=$?
}

on_machine 0 "alpha dataset-fashion-mnist" "" yes
[[ $code == 0 && -z $output && ! -s $work/apt ]] || fail "all there: $code $output"

on_machine 0 "" "alpha dataset-fashion-mnist" no
[[ $code == 1 && $output == "x: missing, and --no-install given: alpha dataset-fashion-mnist" ]] ||
  fail "--no-install: $code $output"
[[ ! -s $work/apt ]] || fail "--no-install called apt-get"

on_machine 1000 "" "alpha dataset-fashion-mnist" yes
[[ $code == 1 && $output == "x: missing packages; run: sudo apt-get install -y alpha dataset-fashion-mnist" ]] ||
  fail "not root: $code $output"

on_machine 0 "" "alpha dataset-fashion-mnist" yes
[[ $code == 0 && $output == "x: installing: alpha dataset-fashion-mnist" ]] || fail "root: $code $output"
grep -q "^install .* alpha dataset-fashion-mnist$" "$work/apt" || fail "apt-get was not asked for both"

on_machine 0 "" "alpha" yes
grep -q "^install .* alpha$" "$work/apt" || fail "photos not offered: $(cat "$work/apt")"

on_machine 0 "alpha" "" no
[[ $code == 0 ]] || fail "only the photos are missing and nobody offers them: $code $output"
