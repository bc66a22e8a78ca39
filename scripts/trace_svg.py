#!/usr/bin/env python3
"""Draws a Chrome trace as an SVG: a row for each stream of each rank, time to the right.

usage: trace_svg.py TRACE.json OUT.svg [--from US] [--length US]

Times are microseconds since the first span. Only complete events (X) are drawn. A stream without a
name of its own is called after what most of its time goes to.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import re
from collections import Counter
from html import escape
from pathlib import Path

ROW, GAP, LEFT, WIDTH, TOP = 26, 8, 150, 1000, 34
COLOURS = ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#9c755f", "#edc948", "#8cd17d", "#d37295"]


def kind_of(span):
    """The name without a number: all buckets are of one kind."""
    return re.sub(r" [0-9]+$", "", span["name"])


def row_names(events, spans):
    """(rank, stream) -> what to call it."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    time = {}
    for e in spans:
        time.setdefault((e["pid"], e["tid"]), Counter())[e.get("cat", "")] += e["dur"]
    for row, spent in time.items():
        if re.fullmatch(r"stream [0-9]+", names.get(row, "stream 0")):
            most = spent.most_common(1)[0][0]
            names[row] = {"other": "copies"}.get(most, most) or f"stream {row[1]}"
    return names


def draw(events, start, length):
    """The SVG of the spans in [start, start + length]."""
    spans = [e for e in events if e["ph"] == "X"]
    names = row_names(events, spans)
    origin = min(e["ts"] for e in spans)
    rows = sorted({(e["pid"], e["tid"]) for e in spans})
    spans = [e for e in spans if -e["dur"] <= e["ts"] - origin - start <= length]
    kinds = sorted({kind_of(e) for e in spans})
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(kinds)}
    unit, per = ("ms", 1000) if length > 20000 else ("us", 1)
    height = TOP + len(rows) * (ROW + GAP) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" '
           'font-family="sans-serif" font-size="11">',
           f'<rect width="100%" height="{height}" fill="#ffffff"/>']
    for i, (rank, thread) in enumerate(rows):
        y = TOP + i * (ROW + GAP)
        label = f"rank {rank}, {names[rank, thread]}"
        out.append(f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(label)}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW}" fill="#f2f2f2"/>')
    for e in spans:
        begin, end = e["ts"] - origin - start, e["ts"] + e["dur"] - origin - start
        begin, end = max(begin, 0), min(end, length)
        x, w = LEFT + begin / length * WIDTH, (end - begin) / length * WIDTH
        if w < 0.2:
            continue
        y = TOP + rows.index((e["pid"], e["tid"])) * (ROW + GAP)
        out.append(f'<rect x="{x:.1f}" y="{y}" width="{w:.1f}" height="{ROW}" fill="{colour[kind_of(e)]}">'
                   f'<title>{escape(e["name"])}: {e["dur"]:.1f} us</title></rect>')
        if w > 7 * len(e["name"]):
            out.append(f'<text x="{x + 3:.1f}" y="{y + 17}" fill="#ffffff">{escape(e["name"])}</text>')
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10**9) if length / per / s <= 12)
    for tick in range(0, int(length / per) + 1, step):
        x = LEFT + tick * per / length * WIDTH
        out.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle">{tick} {unit}</text>')
    x = LEFT
    for name in kinds:
        out.append(f'<rect x="{x}" y="10" width="10" height="10" fill="{colour[name]}"/>'
                   f'<text x="{x + 14}" y="19">{escape(name)}</text>')
        x += 26 + 6 * len(name)
    return "\n".join(out + ["</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--from", dest="start", type=float, default=0)
    parser.add_argument("--length", type=float, default=1000)
    a = parser.parse_args()
    events = json.loads(a.trace.read_text())["traceEvents"]
    a.out.write_text(draw(events, a.start, a.length))


if __name__ == "__main__":
    main()
