#!/usr/bin/env python3
"""The peers of the CUDA benchmarks in PyTorch, on the same GPU: JSON lines.

usage: cuda_peers.py kernels [REPETITIONS]     fused AdamW and get_total_norm, 1 and 148 tensors
       cuda_peers.py ddp [REPETITIONS]         DDP over NCCL with 148 tensors; under mpirun
       cuda_peers.py fsdp [PARAMETERS]         FSDP2, bf16, forty layers, fused AdamW; under mpirun
       cuda_peers.py mlp [EPOCHS]              the classifier's network, fp32 and bf16, eager and compiled
"""
# SPDX-License-Identifier: Apache-2.0
import json
import math
import os
import statistics
import sys
import time

import torch


def shapes():
    c = 768
    layer = [c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c]
    return [50257 * c, 1024 * c] + layer * 12 + [c, c]


def timed(run, repetitions):
    """Median milliseconds by device events."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repetitions):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        run()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b))
    return statistics.median(times)


def kernels(repetitions):
    many = shapes()
    n = sum(many)
    x, y = torch.ones(n, device="cuda"), torch.empty(n, device="cuda")
    copy = 8 * n / timed(lambda: y.copy_(x), repetitions) / 1e6
    del x, y
    print(json.dumps({"bench": "torch copy", "gb_per_s": round(copy)}))
    for sizes, label in (([n], "1 tensor"), (many, "148 tensors")):
        ps = [torch.nn.Parameter(torch.ones(k, device="cuda")) for k in sizes]
        for p in ps:
            p.grad = torch.full_like(p, 0.25)
        fused = torch.optim.AdamW(ps, fused=True)
        rate = 28 * n / timed(fused.step, repetitions) / 1e6
        print(json.dumps({"bench": f"torch fused AdamW, {label}", "gb_per_s": round(rate),
                          "of_copy": round(rate / copy, 3)}))
        grads = [p.grad for p in ps]
        rate = 4 * n / timed(lambda: torch.nn.utils.get_total_norm(grads), repetitions) / 1e6
        print(json.dumps({"bench": f"torch get_total_norm, {label}", "gb_per_s": round(rate),
                          "of_copy": round(rate / copy, 3)}))


class Bag(torch.nn.Module):
    """148 tensors whose backward costs little."""

    def __init__(self):
        super().__init__()
        self.ps = torch.nn.ParameterList(torch.ones(n, device="cuda") for n in shapes())

    def forward(self, x):
        return sum((p * x).sum() for p in self.ps)


def join():
    """Joins the ranks of mpirun over NCCL; this rank and their number."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.distributed.init_process_group("nccl", rank=rank, world_size=size)
    return rank, size


def fsdp(parameters):
    """A step with next to no computation: a batch of 8. Shards of the weights are gathered in forward
    and backward (reshard) or kept after forward."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    rank, size = join()
    width = math.isqrt(parameters // 40)
    x = torch.full((8, width), 0.01, device="cuda", dtype=torch.bfloat16)
    for reshard in (False, True):
        torch.cuda.reset_peak_memory_stats()
        with torch.device("cuda"):
            model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(40)))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for layer in [*model, model]:
            fully_shard(layer, mp_policy=policy, reshard_after_forward=reshard)
        torch.cuda.reset_peak_memory_stats()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        times = []
        for k in range(-2, 5):
            torch.cuda.synchronize()
            torch.distributed.barrier()
            torch.cuda.synchronize()
            start = time.perf_counter()
            model(x).float().sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            if k >= 0:
                times.append(1e3 * (time.perf_counter() - start))
        if rank == 0:
            print(json.dumps({"bench": "torch fsdp2", "reshard": reshard, "ranks": size,
                              "parameters": 40 * width * width,
                              "step_ms": round(statistics.median(times), 2),
                              "peak_mb": round(torch.cuda.max_memory_allocated() / 1e6)}), flush=True)
        del model, optimizer
    torch.distributed.destroy_process_group()


def ddp(repetitions):
    rank, size = join()
    x = torch.ones(1, device="cuda")
    plain, times = Bag(), {}
    wrapped = torch.nn.parallel.DistributedDataParallel(Bag(), gradient_as_bucket_view=True)
    for name, model in (("backward alone", plain), ("with DDP", wrapped)):
        samples = []
        for k in range(-2, repetitions):
            model.zero_grad(set_to_none=False)
            torch.cuda.synchronize()
            torch.distributed.barrier()
            torch.cuda.synchronize()
            start = time.perf_counter()
            model(x).backward()
            torch.cuda.synchronize()
            if k >= 0:
                samples.append(1e3 * (time.perf_counter() - start))
        times[name] = statistics.median(samples)
        if rank == 0:
            print(json.dumps({"bench": f"torch {name}", "ranks": size,
                              "step_ms": round(times[name], 3),
                              "added_ms": round(times[name] - times["backward alone"], 3)}))
    torch.distributed.destroy_process_group()


def mlp(epochs):
    """Samples a second of 784-256-128-10 at batch 512; batches are gathered in pinned host memory."""
    count, batch = 55000, 512
    data = torch.rand(count, 784)
    labels = torch.randint(0, 10, (count,))
    x = torch.empty(batch, 784).pin_memory()
    y = torch.empty(batch, dtype=torch.int64).pin_memory()
    for half in (False, True):
        for compiled in (False, True):
            act = lambda: torch.nn.GELU(approximate="tanh")
            model = torch.nn.Sequential(torch.nn.Linear(784, 256), act(), torch.nn.Linear(256, 128),
                                        act(), torch.nn.Linear(128, 10)).cuda()
            step = torch.compile(model) if compiled else model
            optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
            copied = torch.cuda.Event()

            def epoch():
                order = torch.randperm(count)
                for at in range(0, count - batch + 1, batch):
                    rows = order[at:at + batch]
                    copied.synchronize()
                    torch.index_select(data, 0, rows, out=x)
                    torch.index_select(labels, 0, rows, out=y)
                    dx, dy = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
                    copied.record()
                    with torch.autocast("cuda", torch.bfloat16, enabled=half):
                        loss = torch.nn.functional.cross_entropy(step(dx), dy)
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                torch.cuda.synchronize()

            epoch()
            times = []
            for _ in range(epochs):
                start = time.perf_counter()
                epoch()
                times.append(time.perf_counter() - start)
            rate = count // batch * batch / statistics.median(times)
            print(json.dumps({"bench": f"torch mlp, {'bf16' if half else 'fp32'}, "
                                       f"{'compiled' if compiled else 'eager'}",
                              "samples_per_second": round(rate)}))


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 21
    if what == "kernels":
        kernels(count)
    elif what == "ddp":
        ddp(count)
    elif what == "fsdp":
        fsdp(1_000_000_000 if len(sys.argv) < 3 else count)
    elif what == "mlp":
        mlp(3 if len(sys.argv) < 3 else count)
    else:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
