#!/usr/bin/env bash
# Runs a command and judges it: expect.sh --exit CODE|fail [--match REGEX] [--no-match REGEX] -- command...
# stdout and stderr are judged together; both patterns can be given more than once (grep -E).
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

want=0
match=()
no_match=()
while [[ $# -gt 0 && $1 != -- ]]; do
  case $1 in
    --exit) want=$2; shift 2 ;;
    --match) match+=("$2"); shift 2 ;;
    --no-match) no_match+=("$2"); shift 2 ;;
    *) echo "expect.sh: unknown option $1" >&2; exit 2 ;;
  esac
done
shift

code=0
output=$("$@" 2>&1) || code=$?
bad=()
if [[ $want == fail ]]; then
  [[ $code -ne 0 ]] || bad+=("exit code 0, expected a failure")
elif [[ $code -ne $want ]]; then
  bad+=("exit code $code, expected $want")
fi
for re in "${match[@]}"; do
  grep -Eq -- "$re" <<<"$output" || bad+=("nothing matches: $re")
done
for re in "${no_match[@]}"; do
  ! grep -Eq -- "$re" <<<"$output" || bad+=("should not appear: $re")
done
[[ ${#bad[@]} -eq 0 ]] && exit 0
printf '%s\n' "$output" "---" "${bad[@]/#/expect.sh: }" >&2
exit 1
