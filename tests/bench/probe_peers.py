#!/usr/bin/env python3
"""Host-device bandwidth as polyrank_probe measures it beside PyTorch's pinned copies, in turns.

usage: probe_peers.py WORKER      WORKER: polyrank_probe_gpu
Prints one JSON line per direction: medians in GB/s and their ratio. Exits with 77 without PyTorch or
a GPU.
"""
# SPDX-License-Identifier: Apache-2.0
import json
import statistics
import subprocess
import sys

BYTES = 256 << 20


def of_probe(worker: subprocess.Popen) -> dict[str, float]:
    worker.stdin.write(f"host_device 0 {BYTES}\n")
    worker.stdin.flush()
    fields = worker.stdout.readline().rstrip("\n").split("\t")
    values = dict(f.split("=", 1) for f in fields[1:])
    assert fields[0] == "ok" and values["data"] == "ok", fields
    return {"to_device": float(values["to_device"]), "from_device": float(values["from_device"])}


def of_torch(torch) -> dict[str, float]:
    host = torch.empty(BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(BYTES, dtype=torch.uint8, device="cuda")
    out = {}
    for name, to, source in (("to_device", device, host), ("from_device", host, device)):
        seconds = []
        for _ in range(10):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            to.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3)
        out[name] = BYTES / statistics.median(seconds[1:])
    return out


def main() -> int:
    try:
        import torch
    except ImportError:
        print("probe_peers: skipped, no PyTorch")
        return 77
    if not torch.cuda.is_available():
        print("probe_peers: skipped, no GPU")
        return 77
    worker = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ours, theirs = [], []
    for _ in range(5):
        ours.append(of_probe(worker))
        theirs.append(of_torch(torch))
    worker.stdin.close()
    for name in ("to_device", "from_device"):
        a, b = (statistics.median(r[name] for r in runs) / 1e9 for runs in (ours, theirs))
        print(json.dumps({"bench": f"probe_{name}", "gb_per_s": round(a, 2), "pytorch": round(b, 2),
                          "ratio": round(a / b, 4)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
