#!/usr/bin/env python3
"""CPU AdamW beside PyTorch's fused one: interleaved steps in one run, medians, JSON lines.

usage: cpu_adamw.py [--program build/bin/cpu_adamw_bench] [--parameters N] [--threads T] [--repetitions R]

fp32: the step alone. bf16: what offload does with a gradient in bf16 that must become values in
bf16; PyTorch casts the gradient, steps in fp32, casts the values. Ratios are PyTorch's time / ours.
Needs PyTorch in the running Python. Exits with 77 without it.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

try:
    import torch
except ImportError:
    print("cpu_adamw: no PyTorch here", file=sys.stderr)
    sys.exit(77)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1], add_help=True)
    root = Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--program", default=str(root / "build/bin/cpu_adamw_bench"))
    parser.add_argument("--parameters", type=int, default=1 << 24)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repetitions", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    ours = subprocess.Popen(
        [options.program, "--serve", "--parameters", str(options.parameters), "--threads",
         str(options.threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def our_step(precision: str) -> float:
        ours.stdin.write(precision + "\n")
        ours.stdin.flush()
        return float(ours.stdout.readline())

    weights = torch.ones(options.parameters, requires_grad=True)
    weights.grad = torch.full((options.parameters,), 0.01)
    optimizer = torch.optim.AdamW([weights], lr=1e-3, fused=True)
    gradient16 = weights.grad.to(torch.bfloat16)
    values16 = weights.detach().to(torch.bfloat16)

    def torch_step(precision: str) -> float:
        start = time.perf_counter()
        if precision == "bf16":
            weights.grad.copy_(gradient16)
        optimizer.step()
        if precision == "bf16":
            with torch.no_grad():
                values16.copy_(weights)
        return (time.perf_counter() - start) * 1e3

    for precision in ("fp32", "bf16"):
        mine, theirs = [], []
        for repetition in range(options.repetitions + 1):
            a, b = our_step(precision), torch_step(precision)
            if repetition > 0:  # the first warms up
                mine.append(a)
                theirs.append(b)
        a, b = statistics.median(mine), statistics.median(theirs)
        print(json.dumps({"bench": "cpu_adamw", "precision": precision, "threads": options.threads,
                          "parameters": options.parameters, "polyrank_ms": round(a, 3),
                          "pytorch_ms": round(b, 3), "pytorch": torch.__version__,
                          "ratio": round(b / a, 3)}), flush=True)
    ours.stdin.close()
    return ours.wait()


if __name__ == "__main__":
    sys.exit(main())
