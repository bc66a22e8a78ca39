#!/usr/bin/env bash
# usage: scripts/bench_include_cost.sh [--all] [--repeat N]
#
# What it costs to include polyrank: processor time to compile a file with the umbrella header,
# against a file with just the std and MPI headers that it includes. Median of interleaved
# repetitions; the last line is JSON. Target: ratio <= 1.3. CXX chooses the compiler (default g++), CXXFLAGS the
# flags (default -O2).
#
#   --all       one line more for every header
#   --repeat N  repetitions (default 7)
#   --help      this text
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

me=bench_include_cost
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

all=no
repeat=7
while [[ $# -gt 0 ]]; do
  case $1 in
    --all) all=yes ;;
    --repeat) positive_number "$1" "${2:-}"; repeat=$2; shift ;;
    --help) print_help "$0" ;;
    *) usage_error "unknown option $1" ;;
  esac
  shift
done

command -v mpicxx >/dev/null || die "no mpicxx here; install libopenmpi-dev"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -ra flags <<<"${CXXFLAGS:--O2} -std=c++20 -I$root/include $(mpicxx -showme:compile 2>/dev/null || true)"
compiler=${CXX:-g++}
export LC_ALL=C
TIMEFORMAT='%U %S'

# The std and system headers that the umbrella reaches through our own headers, and through no other.
foreign_headers() {
  local header
  "$compiler" "${flags[@]}" -x c++ -M - <<<'#include <polyrank/polyrank.hpp>' | xargs -n 1 >"$work/reached"
  grep "^$root/include/polyrank/" "$work/reached" | sort -u |
    xargs grep -hE '^ *# *include <' | grep -v '<polyrank/' | sed 's/^ *# *include <//; s/>.*//' | sort -u |
    while read -r header; do  # an include behind an #if may not be reached
      if grep -q "/$header\$" "$work/reached"; then echo "#include <$header>"; fi
    done
}

cat >"$work/base.cpp" <<<"#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
$(foreign_headers)"
echo '#include <polyrank/polyrank.hpp>' >"$work/umbrella.cpp"
names=(base umbrella)
if [[ $all == yes ]]; then
  while IFS= read -r header; do
    name=$(tr / : <<<"${header%.hpp}")
    echo "#include <polyrank/$header>" >"$work/$name.cpp"
    names+=("$name")
  done < <(cd "$root/include/polyrank" && find . -mindepth 2 -name '*.hpp' -not -path './cuda/*' | cut -c3- | sort)
fi

for ((i = 0; i < repeat; ++i)); do
  for name in "${names[@]}"; do
    { time "$compiler" "${flags[@]}" -c "$work/$name.cpp" -o "$work/out.o"; } 2>"$work/time" ||
      { cat "$work/time" >&2; die "$name does not compile"; }
    echo "$name $(tail -n 1 "$work/time")" >>"$work/times"
  done
done

median() {
  awk -v n="$1" '$1 == n { print $2 + $3 }' "$work/times" | sort -n |
    awk '{ t[NR] = $1 } END { print NR % 2 ? t[(NR + 1) / 2] : (t[NR / 2] + t[NR / 2 + 1]) / 2 }'
}
base=$(median base)
printf '%-44s %9s %7s\n' "file that includes" seconds ratio
for name in "${names[@]}"; do
  t=$(median "$name")
  case $name in
    base) label="the std and MPI headers alone" ;;
    umbrella) label=polyrank/polyrank.hpp umbrella=$t ;;
    *) label=polyrank/$(tr : / <<<"$name").hpp ;;
  esac
  printf '%-44s %9.3f %7s\n' "$label" "$t" "$(awk -v a="$t" -v b="$base" 'BEGIN { printf "%.2f", a / b }')"
done
awk -v u="$umbrella" -v b="$base" 'BEGIN {
  printf "{\"benchmark\": \"include_cost\", \"umbrella_seconds\": %.4f, \"base_seconds\": %.4f, \"ratio\": %.3f, \"target\": 1.3}\n", u, b, u / b }'
