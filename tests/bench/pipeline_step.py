"""The peer of pipeline_step.cpp: the same perceptron and step with torch.distributed.pipelining over gloo.

usage: mpirun -n P python pipeline_step.py [SCHEDULE] [MICROBATCHES] [ROWS] [STEPS]     SCHEDULE: gpipe, 1f1b
"""
# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

arguments = sys.argv[1:] + [None] * 4
name, m, rows, steps = arguments[0] or "1f1b", int(arguments[1] or 8), int(arguments[2] or 32), int(arguments[3] or 10)
rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
torch.set_num_threads(1)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29513")
dist.init_process_group("gloo", rank=rank, world_size=ranks)

width, layers = 1024, 8
mine = []
for layer in range(layers * rank // ranks, layers * (rank + 1) // ranks):
    mine.append(nn.Linear(width, width))
    if layer + 1 < layers:
        mine.append(nn.GELU(approximate="tanh"))
stage_model = nn.Sequential(*mine)
optimizer = torch.optim.AdamW(stage_model.parameters(), fused=True)
# Shapes told beforehand: else they travel as pickles, which needs numpy.
one = torch.zeros(rows, width, requires_grad=True)
stage = PipelineStage(stage_model, rank, ranks, torch.device("cpu"), input_args=(one,), output_args=(one,))
kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[name]
schedule = kind(stage, n_microbatches=m, loss_fn=nn.functional.cross_entropy)
x, labels = torch.full((m * rows, width), 0.5), torch.full((m * rows,), 3)
times = []
for step in range(-2, steps):
    dist.barrier()
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=False)
    if ranks == 1:
        schedule.step(x, target=labels)
    elif rank == 0:
        schedule.step(x)
    elif rank + 1 == ranks:
        schedule.step(target=labels)
    else:
        schedule.step()
    optimizer.step()
    dist.barrier()
    if step >= 0:
        times.append((time.perf_counter() - start) * 1e3)
if rank == 0:
    times.sort()
    print(json.dumps({"bench": "pipeline_step", "who": f"pytorch {torch.__version__} pipelining gloo", "schedule": name,
                      "p": ranks, "m": m, "rows": rows, "median_ms": round(times[len(times) // 2], 2),
                      "best_ms": round(times[0], 2)}))
dist.destroy_process_group()
