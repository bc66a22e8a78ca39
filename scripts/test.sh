#!/usr/bin/env bash
# usage: scripts/test.sh [--soak] [--no-install] [--jobs N]
#
# Builds and runs every test: in build/ (Release), and the pure and loopback tests again under
# AddressSanitizer + UndefinedBehaviorSanitizer and under ThreadSanitizer. Ends with the time of
# each stage and a line `N passed, M failed`; exits with CTest's verdict.
#
#   --soak        also the long runs (label `soak`), and all folders under the sanitizers
#   --no-install  do not install; end with the list of what is missing
#   --jobs N      parallel jobs (default: processors)
#   --help        this text
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2317  # functions are called through stage
set -euo pipefail

me='test'
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

install=yes
jobs=$(nproc)
not_now=soak
while [[ $# -gt 0 ]]; do
  case $1 in
    --soak) not_now=none ;;
    --no-install) install=no ;;
    --jobs) positive_number "$1" "${2:-}"; jobs=$2; shift ;;
    --help) print_help "$0" ;;
    *) usage_error "unknown option $1" ;;
  esac
  shift
done

passed=0
failed=0
skipped=()
times=()
runner=()
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# stage NAME COMMAND...: runs it, keeps its time, adds up what CTest says. Returns its verdict.
stage() {
  local name=$1 start=$SECONDS verdict=ok bad all skips
  shift
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$log" || verdict=FAILED
  if read -r bad _ _ _ _ all < <(grep -Eo '[0-9]+ tests failed out of [0-9]+' "$log"); then
    mapfile -t skips < <(sed -nE 's/.*Test +#[0-9]+: ([^ ]+) .*\*\*\*Skipped.*/\1/p' "$log")
    skipped+=("${skips[@]}")
    passed=$((passed + all - bad - ${#skips[@]}))
    failed=$((failed + bad))
  elif [[ $verdict == FAILED ]]; then
    failed=$((failed + 1))  # it did not come as far as a test
  fi
  times+=("$(printf '%-16s %5d s  %s' "$name" $((SECONDS - start)) "$verdict")")
  [[ $verdict == ok ]]
}

finish() {
  printf '\n== time of each stage\n'
  printf '%s\n' "${times[@]}" "$(printf '%-16s %5d s' total "$SECONDS")" ''
  [[ ${#skipped[@]} -eq 0 ]] || echo "${#skipped[@]} skipped: $(printf '%s\n' "${skipped[@]}" | sort -u | xargs)"
  echo "$passed passed, $failed failed"
  [[ $failed -eq 0 ]]
  exit
}

run_tests() {  # run_tests DIR CTEST_SELECTION...
  "${runner[@]}" ctest --parallel "$jobs" --output-on-failure --no-tests=error --test-dir "$@"
}

build_all() {
  cmake --build "$root/build" --parallel "$jobs" &&
    cmake --build "$root/build" --parallel "$jobs" --target polyrank_build_tests
}

# sanitized NAME SANITIZERS SKIP: the pure and loopback tests in a build of their own, without the
# folders SKIP (a regex) unless --soak asks for all.
sanitized() {
  local dir=$root/build-$1 skip=$3
  [[ $not_now != none ]] || skip=''
  configure "$dir" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
    -DPOLYRANK_SANITIZE="$2" -DPOLYRANK_SANITIZE_SKIP="$skip" -DPOLYRANK_CUDA=OFF >/dev/null &&
    cmake --build "$dir" --parallel "$jobs" --target polyrank_unit_tests &&
    run_tests "$dir" -L '^unit$' -LE "^$not_now\$"
}

install_packages "$install" "${test_packages[@]}"
allow_root

stage configure configure "$root/build" -DCMAKE_BUILD_TYPE=Release -DPOLYRANK_WERROR=ON -DPOLYRANK_FAST_BUILD=ON \
  -DPOLYRANK_BUILD_TESTS=ON -DPOLYRANK_BUILD_EXAMPLES=ON || finish
stage build build_all || finish
stage unit run_tests "$root/build" -L '^unit$' -LE "^$not_now\$" || true
# One more than processors: the longest of them sleeps.
stage mpi run_tests "$root/build" --parallel $((jobs + 1)) -L '^mpi$' -LE "^$not_now\$" || true
# Parsers (probe, pipeline) are fuzzed under AddressSanitizer anyway.
stage asan+ubsan sanitized asan address,undefined 'examples|launch|monitor|pipeline|plan|probe' || true
# ThreadSanitizer of g++ 12 cannot start where the kernel randomises addresses widely.
if setarch -R true 2>/dev/null; then runner=(setarch -R); fi
# Nothing to find where there is one thread.
stage tsan sanitized tsan thread 'core|optim|pipeline|plan|probe' || true
runner=()
stage consumers run_tests "$root/build" -L '^consumer$' -LE "^$not_now\$" || true
stage "scripts and docs" run_tests "$root/build" -LE "^(unit|mpi|consumer|$not_now)\$" || true
finish
