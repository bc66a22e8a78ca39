#!/usr/bin/env bash
# usage: tool_test.sh POLYRANK_CHECKPOINT SCRATCH
# polyrank_checkpoint: llm.c's files to safetensors and back, on other numbers of processes; the
# files are made, and read, by Python alone.
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2317  # functions are called through check
set -euo pipefail
tool=$1 dir=$2/tool
failed=0
check() {  # check WHAT command...
  local what=$1
  shift
  if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; failed=1; fi
}
refused() {  # refused CODE WORDS command...
  local code=0 want=$1 words=$2
  shift 2
  "$@" >"$dir/out" 2>&1 || code=$?
  if [[ $code -ne $want || $(wc -l <"$dir/out") -ne 1 ]] || ! grep -q -- "$words" "$dir/out"; then
    cat "$dir/out"
    return 1
  fi
}
rm -rf "$dir" && mkdir -p "$dir"
cat >"$dir/llmc.py" <<'PYTHON'
import struct, sys, pathlib
T, V, L, H, C, VP = 3, 5, 2, 2, 4, 8
sizes = [VP*C, T*C] + [L*n for n in (C, C, 3*C*C, 3*C, C*C, C, C, C, 4*C*C, 4*C, 4*C*C, C)] + [C, C]
P = sum(sizes)
def write(d, ranks, zero):
    d = pathlib.Path(d); d.mkdir()
    head = struct.pack("<8i", 20240326, 3, T, V, L, H, C, VP).ljust(1024, b"\0")
    (d / "model_00000020.bin").write_bytes(head + struct.pack(f"<{P}f", *range(P)))
    for r in range(ranks):
        h = bytearray(1024)
        struct.pack_into("<6i", h, 0, 20240527, 1, ranks, r, 1, 0)
        struct.pack_into("<i", h, 40, 20)
        struct.pack_into("<Q", h, 80, 1234567890123 + r)
        struct.pack_into("<QQ", h, 120, 1, 64)
        body = b""
        for plane in range(3):
            values, at = [], 0
            for i, n in enumerate(sizes):
                for l in range(L if 2 <= i <= 13 else 1):
                    m = n // (L if 2 <= i <= 13 else 1)
                    k = m // ranks if zero else m
                    values += range(at + (r * k if zero else 0), at + (r * k if zero else 0) + k)
                    at += m
            body += struct.pack(f"<{len(values)}f", *(1000 * plane + v for v in values))
        (d / f"state_00000020_{r:05d}.bin").write_bytes(h + body)
    (d / "DONE_00000020").touch()
if __name__ == "__main__": write(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")
PYTHON
make() { python3 "$dir/llmc.py" "$dir/$1" "$2" "$3"; }
from() { "$tool" from-llmc "$dir/$1/model_00000020.bin" "$dir/$1"/state_*.bin --out "$dir/$1.safetensors" >"$dir/out"; }

make two 2 1 && from two
check "two processes to two: the same files" bash -c "'$tool' to-llmc '$dir/two.safetensors' --ranks 2 --zero 1 --out '$dir/back' >'$dir/out' &&
  diff -r '$dir/two' '$dir/back'"
make four 4 1
"$tool" to-llmc "$dir/two.safetensors" --ranks 4 --zero 1 --out "$dir/more" >"$dir/out"
check "two to four: the same moments" python3 - "$dir" <<'PYTHON'
import sys, pathlib
for r in range(4):
    a, b = (pathlib.Path(sys.argv[1]) / d / f"state_00000020_{r:05d}.bin" for d in ("four", "more"))
    assert a.read_bytes()[1024:] == b.read_bytes()[1024:], r
PYTHON
make plain 2 0 && from plain
check "without ZeRO too" cmp -s <(tail -c +4000 "$dir/two.safetensors") <(tail -c +4000 "$dir/plain.safetensors")
"$tool" to-llmc "$dir/two.safetensors" --precision bf16 --out "$dir/short" >"$dir/out"
check "bf16 is version 5, half as long" python3 - "$dir" <<'PYTHON'
import sys, struct, pathlib
a = (pathlib.Path(sys.argv[1]) / "short/model_00000020.bin").read_bytes()
n = (len(a) - 1024) // 2
assert struct.unpack("<i", a[4:8]) == (5,)
top = struct.unpack(f"<{n}H", a[1024:])
assert [struct.unpack("<f", struct.pack("<I", v << 16))[0] for v in top[:200]] == list(range(200))
PYTHON
check "a missing process is named" refused 1 "the state of process 1 of 2 is missing" \
  "$tool" from-llmc "$dir/two/model_00000020.bin" "$dir/two/state_00000020_00000.bin" --out "$dir/x"
check "processes that do not divide" refused 2 "--ranks 3: with ZeRO-1 every tensor" \
  "$tool" to-llmc "$dir/two.safetensors" --ranks 3 --zero 1 --out "$dir/x"
check "a state is no model" refused 1 "is no model of llm.c" \
  "$tool" from-llmc "$dir/two/state_00000020_00000.bin" --out "$dir/x"
check "a directory without checkpoints" refused 1 "holds no checkpoint" "$tool" list "$dir"
check "an unknown flag" refused 2 "frobnicate" "$tool" list "$dir" --frobnicate
exit $failed
