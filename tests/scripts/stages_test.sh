#!/usr/bin/env bash
# stages_test.sh SCRIPTS: test.sh counts what CTest says, with a false cmake and ctest in the PATH.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

scripts=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "stages_test: $*" >&2
  exit 1
}

mkdir "$work/bin"
# shellcheck disable=SC2016
printf '#!/bin/bash\nexit ${FALSE_CMAKE:-0}\n' >"$work/bin/cmake"
cat >"$work/bin/ctest" <<'END'
#!/bin/bash
echo "$*" >>"$CTEST_CALLS"
echo "1/3 Test  #7: probe.files ......***Skipped   0.01 sec"
if [[ $* == *^mpi* && -n ${FALSE_CTEST:-} ]]; then
  echo "67% tests passed, 1 tests failed out of 3"
  exit 8
fi
echo "100% tests passed, 0 tests failed out of 3"
END
printf '#!/bin/bash\necho -n installed\n' >"$work/bin/dpkg-query"
chmod +x "$work"/bin/*

run() {
  code=0
  : >"$work/calls"
  output=$(PATH=$work/bin:$PATH CTEST_CALLS=$work/calls "$scripts/test.sh" "$@" 2>&1) || code=$?
  last=$(tail -n 1 <<<"$output")
}

run
[[ $code == 0 && $last == "12 passed, 0 failed" ]] || fail "all good: $code $output"
[[ $output == *"6 skipped: probe.files"* ]] || fail "skipped tests are not named: $output"
grep -q -- "-LE ^soak" "$work/calls" || fail "long runs are not left out: $(cat "$work/calls")"
for name in configure build unit mpi asan+ubsan tsan consumers "scripts and docs" total; do
  [[ $output == *"
$name "* ]] || fail "no time of $name: $output"
done

run --soak
if grep -q soak "$work/calls"; then fail "--soak leaves out the long runs"; fi

FALSE_CTEST=1 run
[[ $code == 1 && $last == "11 passed, 1 failed" ]] || fail "one failure: $code $output"

FALSE_CMAKE=1 run
[[ $code == 1 && $last == "0 passed, 1 failed" ]] || fail "no build: $code $output"
