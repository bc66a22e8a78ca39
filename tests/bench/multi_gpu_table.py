#!/usr/bin/env python3
"""The results of scripts/bench_multi_gpu.sh in DIR as DIR/results.json and one table.

usage: multi_gpu_table.py DIR
"""
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import re
import sys

POINTS = ["probe", "bandwidth", "grad_sync", "policies", "zero", "pipeline", "scaling", "hang"]


def read_json(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def read_lines(path):
    """JSON lines; one that was cut short is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            print(f"multi_gpu_table: {path.name}: no JSON: {line[:80]}", file=sys.stderr)
    return found


def smi_links(text):
    """{(0, 1): "NV18"} from nvidia-smi topo -m."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    rows = [row for row in rows if row and re.fullmatch(r"GPU\d+", row[0])]
    if rows and rows[0][1:2] != ["X"]:  # the head of the matrix
        rows = rows[1:]
    n = len(rows)
    return {(a, b): rows[a][1 + b] for a in range(n) for b in range(a + 1, n) if len(rows[a]) > n}


def probe_links(report):
    links = {}
    for pair in (report or {}).get("pairs", []):
        a, b = sorted((int(pair["a"]), int(pair["b"])))
        nvlink = pair["nvlink"]
        links[a, b] = f"NV{nvlink}" if isinstance(nvlink, int) and nvlink > 0 else pair["pci"]
    return links


def main(folder):
    verdicts = []
    for line in (folder / "verdicts").read_text().splitlines():
        point, ranks, verdict, seconds, command = line.split("|", 4)
        verdicts.append({"point": point, "ranks": int(ranks), "verdict": verdict, "seconds": int(seconds),
                         "command": command})
    points = {point: read_lines(folder / f"{point}.jsonl") for point in POINTS}

    smi = smi_links((folder / "nvidia-smi-topo.txt").read_text())
    ours = probe_links(read_json(folder / "probe.json"))
    points["probe"].append({"bench": "links", "nvidia_smi": {f"{a}-{b}": v for (a, b), v in smi.items()},
                            "probe": {f"{a}-{b}": v for (a, b), v in ours.items()},
                            "agree": all(ours.get(k) == v for k, v in smi.items()) if smi and ours else None})
    first = None
    for path in sorted(folder.glob("scaling*.json"), key=lambda p: int(re.sub(r"\D", "", p.stem))):
        run = read_json(path)
        if run is None:
            continue
        rate = run["samples_per_second"] / run["ranks"]
        first = first or rate
        points["scaling"].append({"bench": "train_classifier", "ranks": run["ranks"],
                                  "samples_per_second": round(run["samples_per_second"]),
                                  "efficiency": round(rate / first, 3)})
    hang = read_json(folder / "hang.json")
    if hang is not None:
        points["hang"].append({"bench": "selftest", "results": hang})
    (folder / "results.json").write_text(json.dumps({"points": points, "steps": verdicts}, indent=1) + "\n")

    for point in POINTS:
        print(f"\n== {POINTS.index(point) + 1} {point}")
        for line in points[point]:
            print("  " + "  ".join(f"{k} {v}" for k, v in line.items() if k != "results"))
        for result in (hang if point == "hang" and isinstance(hang, list) else []):
            print("  " + "  ".join(f"{k} {v}" for k, v in result.items()))
        for v in verdicts:
            if v["point"] == point:
                name = pathlib.Path(v["command"].split()[0]).name
                print(f"  [{v['verdict']}, {v['seconds']} s] {v['ranks']} ranks: {name} "
                      + " ".join(v["command"].split()[1:])[:90])
    bad = [v for v in verdicts if v["verdict"] != "ok"]
    print(f"\n{len(verdicts) - len(bad)} of {len(verdicts)} steps ok, {sum(v['seconds'] for v in verdicts)} s; "
          f"{folder / 'results.json'}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    main(pathlib.Path(sys.argv[1]))
