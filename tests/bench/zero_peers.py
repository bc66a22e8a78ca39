#!/usr/bin/env python3
"""PyTorch FSDP2 with CPU offload: seconds of a training step, beside zero_cuda_bench.

usage: zero_peers.py [--parameters N] [--steps S] [--threads T] [--seconds L]

Forty linear layers, parameters in fp32 on the host, bf16 in forward and backward
(MixedPrecisionPolicy), gradients reduced in bf16, fused AdamW in fp32 on the CPU, with and without
clipping. A tiny batch: next to nothing is computed. One rank. JSON lines, medians after a
first step that does not count; none begins later than L seconds (default 50) after the start. Where
the time goes is told on stderr. Exits with 77 without PyTorch or a GPU.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import math
import os
import statistics
import sys
import time

started = time.perf_counter()
try:
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
except ImportError:
    print("zero_peers: no PyTorch with FSDP2 here", file=sys.stderr)
    sys.exit(77)


def tell(what: str) -> None:
    print(f"zero_peers: {time.perf_counter() - started:5.1f} s: {what}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("--parameters", type=int, default=1_000_000_000)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=50)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("zero_peers: no GPU here", file=sys.stderr)
        return 77
    torch.set_num_threads(options.threads)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29555")
    # Clipping adds up norms that are on the CPU.
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    tell("process group")
    width = math.isqrt(options.parameters // 40)
    with torch.device("meta"):
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(40)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for layer in [*model, model]:
        fully_shard(layer, offload_policy=CPUOffloadPolicy(pin_memory=True), mp_policy=policy)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for weights in model.parameters():
            weights.fill_(0.5 / width)
    tell("model in host memory")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    count = sum(p.numel() for p in model.parameters())
    batch = torch.full((8, width), 0.01, device="cuda", dtype=torch.bfloat16)

    for clip in (False, True):
        times, updates = [], []
        for step in range(options.steps + 1):
            if time.perf_counter() - started > options.seconds and (times or clip):
                break
            torch.cuda.synchronize()
            start = time.perf_counter()
            model(batch).float().sum().backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            torch.cuda.synchronize()
            before_update = time.perf_counter()
            optimizer.step()
            updates.append((time.perf_counter() - before_update) * 1e3)
            optimizer.zero_grad()
            times.append((time.perf_counter() - start) * 1e3)
            tell(f"step {step}, {times[-1]:.0f} ms")
        if len(times) < 2:
            tell(f"no time left for steps {'with' if clip else 'without'} clipping")
            continue
        print(json.dumps({"bench": "fsdp2 cpu offload", "clip": "exact" if clip else "none",
                          "parameters": count, "threads": options.threads, "steps": len(times) - 1,
                          "ms": round(statistics.median(times[1:]), 1),
                          "update_ms": round(statistics.median(updates[1:]), 1),
                          "pytorch": torch.__version__}), flush=True)
    torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
