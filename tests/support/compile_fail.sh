#!/usr/bin/env bash
# compile_fail.sh FILE REGEX COMPILER FLAGS...: the file must not compile, and the diagnostics must
# match. With POLYRANK_FIXED defined, which takes the faulty line out, it must compile.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

file=$1 regex=$2
shift 2

if ! grep -q POLYRANK_FIXED "$file"; then
  echo "$file: has no POLYRANK_FIXED branch that shows the right use" >&2
  exit 1
fi
if ! "$@" -fsyntax-only -DPOLYRANK_FIXED "$file"; then
  echo "$file: does not compile with POLYRANK_FIXED either" >&2
  exit 1
fi
if output=$("$@" -fsyntax-only "$file" 2>&1); then
  echo "$file: compiles, but should not" >&2
  exit 1
fi
if ! grep -Eq -- "$regex" <<<"$output"; then
  printf '%s\n---\n%s\n' "$output" "$file: the diagnostics do not match: $regex" >&2
  exit 1
fi
