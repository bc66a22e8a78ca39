#!/usr/bin/env bash
# sanitize.sh SOURCE: scripts/sanitize.sh with a made-up compute-sanitizer that finds something on
# rank 1.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/compute-sanitizer" <<'END'
#!/usr/bin/env bash
all=$*
log=${all#*--log-file }
log=${log%% *}
log=${log//%q\{OMPI_COMM_WORLD_RANK\}/$OMPI_COMM_WORLD_RANK}
if [[ $OMPI_COMM_WORLD_RANK == "$BAD_RANK" ]]; then
  printf '========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 3 errors\n' >"$log"
  exit 1
fi
printf '========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n' >"$log"
END
chmod +x "$folder/compute-sanitizer"
fail() { echo "sanitize.sh: $*" >&2; exit 1; }
export PATH=$folder:$PATH
out=$(BAD_RANK=9 "$source/scripts/sanitize.sh" --out "$folder/logs" 2 true 2>&1) || fail "clean ranks: $out"
[[ $(grep -c 'rank [01]: clean' <<<"$out") == 2 ]] || fail "two clean ranks: $out"
! out=$(BAD_RANK=1 "$source/scripts/sanitize.sh" --out "$folder/logs" 2 true 2>&1) || fail "errors pass: $out"
grep -q 'rank 1: ERROR SUMMARY: 3 errors; first: Invalid __global__ write' <<<"$out" || fail "not named: $out"
code=0
"$source/scripts/sanitize.sh" --tool nothing 2 true 2>/dev/null || code=$?
[[ $code == 2 ]] || fail "a wrong tool: $code"
