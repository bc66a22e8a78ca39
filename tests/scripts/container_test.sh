#!/usr/bin/env bash
# container_test.sh ROOT: what can be checked of the container recipes without building an image: their
# commands are clean shell, both install the same packages, apt knows these, and cmake the options.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
root=$1
fail() {
  echo "container_test: $*" >&2
  exit 1
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# RUN lines with their continuations; the %post section.
awk '/^RUN /{on=1; sub(/^RUN /, "")} on{print} on && !/\\$/{on=0}' "$root/scripts/container/Dockerfile" >"$folder/docker"
awk '/^%/{on = ($1 == "%post"); next} on{print}' "$root/scripts/container/polyrank.def" >"$folder/apptainer"
for recipe in docker apptainer; do
  [[ $(wc -l <"$folder/$recipe") -ge 5 ]] || fail "no commands found in the recipe for $recipe"
  bash -n "$folder/$recipe" || fail "the commands for $recipe do not parse"
  if command -v shellcheck >/dev/null; then
    shellcheck -s bash -S warning "$folder/$recipe" || fail "shellcheck, $recipe"
  fi
  # From the option to the end of that command (&& in one, the end of the line in the other).
  sed -n '/--no-install-recommends/,/[^\\]$/p' "$folder/$recipe" | sed 's/.*--no-install-recommends//; s/&&.*//' |
    tr '\\\n' '  ' | xargs -n1 | sort >"$folder/$recipe.packages"
  grep -o -- '-DPOLYRANK_[A-Z_]*' "$folder/$recipe" | sed 's/-D//' | sort -u | while read -r option; do
    grep -q "$option" "$root/CMakeLists.txt" || fail "$recipe: no such option: $option"
  done
done
diff "$folder/docker.packages" "$folder/apptainer.packages" || fail "the recipes install different packages"
grep -q '^openmpi-bin$' "$folder/docker.packages" || fail "no packages found"
base=$(grep -h -E '^(FROM|From:)' "$root"/scripts/container/* | awk '{print $2}' | sort -u)
[[ $base == *:*.*-devel-ubuntu24.04 && $base != *$'\n'* ]] || fail "one pinned base image expected, found: $base"
if command -v apt-cache >/dev/null && [[ $(apt-cache policy cmake) == *Candidate:\ [0-9]* ]]; then
  while read -r package; do
    [[ $(apt-cache policy "$package") == *Candidate:\ [0-9]* ]] || fail "apt knows no package $package"
  done <"$folder/docker.packages"
  echo "container_test: $(wc -l <"$folder/docker.packages") packages are known here, commands are clean"
fi
