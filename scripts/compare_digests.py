#!/usr/bin/env python3
"""Compares the digests of two runs: names the first step and tensor that differ.

usage: compare_digests.py A B

A and B are digests.csv files that `train_classifier --digest-every K --out DIR` wrote, or the folders
DIR. Steps that both have are compared, in order. Of a tensor whose gradient differs the sum over the
ranks or what led to it is to blame; where only weight or state differ, it is the update. Exits with
0 (equal), 1 (different) or 2 (not to be compared).
"""
# SPDX-License-Identifier: Apache-2.0
import csv
import sys
from pathlib import Path

PARTS = ("gradient", "weight", "state")


class Unusable(Exception):
    """Says why two files cannot be compared."""


def read(path):
    """{step: {tensor: row}}; a later line (of a resumed run) replaces an earlier one."""
    path = path / "digests.csv" if path.is_dir() else path
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames != ["step", "tensor", *PARTS]:
                raise Unusable(f"{path}: not a file of digests")
            steps = {}
            for row in rows:
                if None in row.values() or not row["step"].isdecimal():
                    raise Unusable(f"{path}:{rows.line_num}: not a line of digests")
                steps.setdefault(int(row["step"]), {})[row["tensor"]] = row
    except (OSError, UnicodeDecodeError) as e:
        raise Unusable(f"{path}: {e.strerror if isinstance(e, OSError) else 'not text'}") from e
    return steps


def parts_that_differ(a, b):
    """Names of the parts; one that only one of the runs has says nothing."""
    return [p for p in PARTS if a[p] and b[p] and a[p] != b[p]]


def compare(a, b):
    """The verdict as (equal, text)."""
    common = sorted(a.keys() & b.keys())
    if not common:
        raise Unusable("the runs have no step in common")
    for step in common:
        if a[step].keys() != b[step].keys():
            odd = sorted(a[step].keys() ^ b[step].keys())
            raise Unusable(f"step {step}: only one of the runs has {', '.join(odd)}")
        different = {t: parts_that_differ(row, b[step][t]) for t, row in a[step].items()}
        different = {t: parts for t, parts in different.items() if parts}
        if different:
            first, parts = next(iter(different.items()))
            equal = [s for s in common if s < step]
            return False, (f"step {step}: {first} differs ({', '.join(parts)}); "
                           f"{len(different)} of {len(a[step])} tensors differ; "
                           + (f"the last equal step is {equal[-1]}" if equal else "no earlier step was compared"))
    return True, f"equal: {len(common)} steps, the last is {common[-1]}"


def main():
    if len(sys.argv) == 2 and sys.argv[1] == "--help":
        print(__doc__.strip())
        return 0
    if len(sys.argv) != 3:
        print("compare_digests: two runs are needed (see --help)", file=sys.stderr)
        return 2
    try:
        equal, text = compare(*(read(Path(p)) for p in sys.argv[1:]))
    except Unusable as e:
        print(f"compare_digests: {e}", file=sys.stderr)
        return 2
    print(text)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
