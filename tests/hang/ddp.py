#!/usr/bin/env python3
"""ddp.py FAULT: PyTorch DDP over NCCL, for the preloaded library; rank 1 is at fault in step 5.

Under a launcher (OMPI_COMM_WORLD_RANK). FAULT: none, skip, count, kill.
SPDX-License-Identifier: Apache-2.0
"""
import os
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist

fault = sys.argv[1]
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
torch.cuda.set_device(rank % torch.cuda.device_count())
store = os.path.join(os.environ.get("DDP_STORE", tempfile.gettempdir()), "ddp_store")
dist.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=size)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
for step in range(8):
    now = rank == 1 and step == 5
    if now:
        print("fault now", file=sys.stderr, flush=True)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    ddp(torch.randn(64, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    if not (now and fault == "skip"):
        norm = torch.ones(1001 - (7 if now and fault == "count" else 0), device="cuda")
        dist.all_reduce(norm)
    torch.cuda.synchronize()
    time.sleep(0.05)
dist.destroy_process_group()
if rank == 0:
    print("ddp: done")
