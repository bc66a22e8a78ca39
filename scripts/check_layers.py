#!/usr/bin/env python3
"""Checks the headers against the house rules; the layers are read from CONTRIBUTING.md.

usage: check_layers.py [ROOT]    ROOT: the source tree, by default the one this script is in.
Prints one line for each breach and exits with 1, or exits with 0.
"""
# SPDX-License-Identifier: Apache-2.0
import re
import sys
from pathlib import Path

MAX_LINES = 600
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA_HEADER = re.compile(r"^(cuda|nccl|cublas|cub/|thrust/|nvml|nvtx3/|device_launch|driver_types)")
DEVICE_CODE = re.compile(r"__global__|<<<")
MPI_HEADER_HOME = "host/mpi_include.hpp"


def read_layers(contributing: str) -> dict[str, int]:
    """{'core': 1, ...} from the lines `folder/ folder/   layer N` of the page."""
    layers = {}
    for line in contributing.splitlines():
        found = re.match(r"\s+((?:[a-z_]+/\s+)+)layer (\d+)", line)
        if found:
            for folder in found[1].split():
                layers[folder.rstrip("/")] = int(found[2])
    return layers


def strip_comments(text: str) -> str:
    """The text without comments, line numbers kept."""
    keep_lines = lambda found: "\n" * found[0].count("\n")
    return re.sub(r"//[^\n]*|/\*.*?\*/", keep_lines, text, flags=re.S)


def check_include(own: Path, quote: str, target: str, headers: set[str], layers: dict) -> str | None:
    """What is wrong with one include line of header `own`, or None."""
    folder = own.parts[0] if len(own.parts) > 1 else None  # None: an umbrella
    if quote == '"':
        return f'"{target}": include as <polyrank/...>'
    if target == "iostream":
        return "<iostream>: headers do not print"
    if target == "mpi.h" and own.as_posix() != MPI_HEADER_HOME:
        return f"<mpi.h>: include <polyrank/{MPI_HEADER_HOME}>"
    if CUDA_HEADER.match(target) and folder != "cuda" and own.suffix != ".cuh":
        return f"<{target}>: only cuda/ may include CUDA or NCCL"
    if not target.startswith("polyrank/"):
        return None
    name = target.removeprefix("polyrank/")
    if name not in headers:
        return f"<{target}>: no such header"
    if name.endswith(".cuh") and own.suffix != ".cuh":
        return f"<{target}>: only a .cuh may include a .cuh"
    other = name.split("/")[0] if "/" in name else None
    if other is None:
        return f"<{target}>: an umbrella is for users" if folder else None
    if folder is None:
        return f"<{target}>: {own} is for host code" if other == "cuda" and own.suffix == ".hpp" else None
    if other != folder and layers.get(other, 99) >= layers.get(folder, 0):
        return f"<{target}>: layer {layers.get(other, '?')} from layer {layers.get(folder, '?')}"
    return None


def check_header(own: Path, text: str, headers: set[str], layers: dict) -> list[tuple[int, str]]:
    """[(line, what is wrong)] for one header; `own` is relative to include/polyrank."""
    bad = []
    lines = text.splitlines()
    if len(own.parts) > 1 and own.parts[0] not in layers:
        bad.append((1, f"folder {own.parts[0]}/ has no layer in CONTRIBUTING.md"))
    if len(lines) > MAX_LINES:
        bad.append((len(lines), f"{len(lines)} lines, the cap is {MAX_LINES}"))
    if "// SPDX-License-Identifier: Apache-2.0" not in lines:
        bad.append((1, "no line `// SPDX-License-Identifier: Apache-2.0`"))
    if "#pragma once" not in lines:
        bad.append((1, "no #pragma once"))
    for number, line in enumerate(strip_comments(text).splitlines(), 1):
        found = INCLUDE.match(line)
        wrong = check_include(own, found[1], found[2], headers, layers) if found else None
        if wrong:
            bad.append((number, wrong))
        if own.suffix != ".cuh" and DEVICE_CODE.search(line):
            bad.append((number, "device code: only a .cuh may hold __global__ or <<<"))
    return bad


def check_tree(root: Path) -> list[str]:
    """One line for each breach in the source tree."""
    layers = read_layers((root / "CONTRIBUTING.md").read_text())
    if not layers:
        return ["CONTRIBUTING.md: no line of the form `folder/   layer N`"]
    base = root / "include/polyrank"
    files = sorted(p for p in base.rglob("*") if p.suffix in (".hpp", ".cuh"))
    headers = {p.relative_to(base).as_posix() for p in files}
    breaches = []
    for path in files:
        for line, what in check_header(path.relative_to(base), path.read_text(), headers, layers):
            breaches.append(f"{path.relative_to(root)}:{line}: {what}")
    return breaches


def main(arguments: list[str]) -> int:
    if "--help" in arguments:
        print(__doc__.strip())
        return 0
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        print("usage: check_layers.py [ROOT]", file=sys.stderr)
        return 2
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not (root / "include/polyrank").is_dir():
        print(f"check_layers: {root} has no include/polyrank", file=sys.stderr)
        return 2
    breaches = check_tree(root)
    print(*breaches, sep="\n", end="\n" if breaches else "")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
