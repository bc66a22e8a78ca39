#!/usr/bin/env python3
"""Runs the commands and checks the links of README.md, CONTRIBUTING.md and docs/.

usage: check_docs.py [--build DIR] [--compile COMMAND] [FILE...]
  --build DIR        the build tree that `build/` stands for in the texts (default: build)
  --compile COMMAND  compiler and flags for the C++ blocks; without it they are not compiled
  FILE...            look at these only

A block fenced as ```sh test must succeed: it runs in an empty folder that shows the source tree,
with mpirun set up as scripts/test.sh has it. A block fenced as ```cpp test must compile. Links to
files must lead somewhere. Prints one line for each breach and exits with 1, or exits with 0.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(sh|cpp) test[^\n]*\n(.*?)^```", re.S | re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
SECONDS = 120

# What `mpirun` means in all texts, as environment: Open MPI 4 reads the first two, 5 the others.
MPIRUN = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def make_scratch(folder: Path, build: Path) -> None:
    """Shows the source tree in an empty folder, so that what a command writes is thrown away."""
    for entry in ROOT.iterdir():
        if not entry.name.startswith((".git", "build", "out")):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").symlink_to(build)


def run_shell(text: str, build: Path) -> str | None:
    """What went wrong, or None."""
    environment = os.environ | MPIRUN | (AS_ROOT if os.geteuid() == 0 else {})
    with tempfile.TemporaryDirectory() as folder:
        make_scratch(Path(folder), build)
        command = ["timeout", str(SECONDS), "bash", "-euo", "pipefail", "-c", text]
        run = subprocess.run(command, cwd=folder, env=environment, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if run.returncode == 124:
        return f"no end after {SECONDS} s\n{run.stdout}"
    return f"exit code {run.returncode}\n{run.stdout}" if run.returncode else None


def compile_cpp(text: str, compiler: str) -> str | None:
    """What went wrong, or None."""
    run = subprocess.run([*compiler.split(), "-fsyntax-only", "-x", "c++", "-"], input=text, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return f"does not compile\n{run.stdout}" if run.returncode else None


def check_page(page: Path, options: argparse.Namespace) -> list[str]:
    """One text for each breach on the page."""
    text = page.read_text()
    line = lambda position: f"{page}:{text.count(chr(10), 0, position) + 1}"
    breaches = []
    for block in BLOCK.finditer(text):
        if block[1] == "sh":
            wrong = run_shell(block[2], options.build)
        else:
            wrong = compile_cpp(block[2], options.compile) if options.compile else None
        if wrong:
            breaches.append(f"{line(block.start())}: {wrong}")
    for link in LINK.finditer(text):
        if "://" not in link[1] and not (page.parent / link[1]).exists():
            breaches.append(f"{line(link.start())}: link to {link[1]}, which is not there")
    return breaches


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1], add_help=False)
    parser.add_argument("--help", action="store_true")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--compile", default="")
    parser.add_argument("pages", nargs="*", type=Path)
    options = parser.parse_args()
    if options.help:
        print(__doc__.strip())
        return 0
    options.build = options.build.resolve()
    pages = options.pages or [p for p in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if p.exists()]
    if not options.pages:
        pages += sorted((ROOT / "docs").rglob("*.md"))
    breaches = []
    for page in pages:
        if not page.is_file():
            print(f"check_docs: no file {page}", file=sys.stderr)
            return 2
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(lambda page: check_page(page, options), pages):
            breaches += found
    print(*breaches, sep="\n", end="\n" if breaches else "")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
