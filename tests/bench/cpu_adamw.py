#!/usr/bin/env python3
"""CPU AdamW beside PyTorch's fused one, and DeepSpeed's where it is installed: interleaved steps in
one run, medians, JSON lines.

usage: cpu_adamw.py [--program build/bin/cpu_adamw_bench] [--parameters N] [--threads T] [--repetitions R]

fp32: the step alone. bf16: what offload does with a gradient in bf16 that must become values in
bf16; the others cast the gradient, step in fp32, cast the values. Ratios are their time / ours.
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
try:
    from deepspeed.ops.adam import DeepSpeedCPUAdam  # builds itself at the first use
except ImportError:
    DeepSpeedCPUAdam = None


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

    def stepper(make):
        weights = torch.ones(options.parameters, requires_grad=True)
        weights.grad = torch.full((options.parameters,), 0.01)
        optimizer = make([weights])
        gradient16 = weights.grad.to(torch.bfloat16)
        values16 = weights.detach().to(torch.bfloat16)

        def step(precision: str) -> float:
            start = time.perf_counter()
            if precision == "bf16":
                weights.grad.copy_(gradient16)
            optimizer.step()
            if precision == "bf16":
                with torch.no_grad():
                    values16.copy_(weights)
            return (time.perf_counter() - start) * 1e3

        return step

    steppers = {"polyrank": our_step,
                "pytorch": stepper(lambda w: torch.optim.AdamW(w, lr=1e-3, fused=True))}
    if DeepSpeedCPUAdam is not None:
        steppers["deepspeed"] = stepper(lambda w: DeepSpeedCPUAdam(w, lr=1e-3, adamw_mode=True))

    for precision in ("fp32", "bf16"):
        times = {name: [] for name in steppers}
        for repetition in range(options.repetitions + 1):
            for name, step in steppers.items():
                time.sleep(0.02)  # threads of the one before look for more work for a while
                took = step(precision)
                if repetition > 0:  # the first warms up
                    times[name].append(took)
        medians = {name: statistics.median(all_times) for name, all_times in times.items()}
        line = {"bench": "cpu_adamw", "precision": precision, "threads": options.threads,
                "parameters": options.parameters, "pytorch": torch.__version__}
        for name, median in medians.items():
            line[f"{name}_ms"] = round(median, 3)
            if name != "polyrank":
                line[f"{name}_ratio"] = round(median / medians["polyrank"], 3)
        print(json.dumps(line), flush=True)
    ours.stdin.close()
    return ours.wait()


if __name__ == "__main__":
    sys.exit(main())
