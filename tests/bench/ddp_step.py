"""The peer of ddp_step.cpp: the same perceptron and step in PyTorch, DistributedDataParallel over gloo.

usage: mpirun -n N python ddp_step.py [STEPS] [ROWS]
"""
# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
rows = int(sys.argv[2]) if len(sys.argv) > 2 else 128
rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29511")
dist.init_process_group("gloo", rank=rank, world_size=ranks)

widths = [1024, 2048, 2304, 1536]
layers = []
for a, b in zip(widths, widths[1:]):
    layers += [nn.Linear(a, b), nn.GELU(approximate="tanh")]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(widths[-1], 10)), gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x, labels = torch.full((rows, widths[0]), 0.5), torch.full((rows,), 3)
times = []
for step in range(-3, steps):
    dist.barrier()
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=False)
    nn.functional.cross_entropy(model(x), labels).backward()
    optimizer.step()
    if step >= 0:
        times.append((time.perf_counter() - start) * 1e3)
if rank == 0:
    times.sort()
    count = sum(p.numel() for p in model.parameters())
    print(json.dumps({"bench": "ddp_step", "who": f"pytorch {torch.__version__} ddp gloo", "ranks": ranks,
                      "parameters": count, "rows_per_rank": rows, "median_ms": round(times[len(times) // 2], 2),
                      "best_ms": round(times[0], 2)}))
dist.destroy_process_group()
