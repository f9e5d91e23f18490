"""The ranks of PyTorch: torch.distributed, with NCCL between CUDA devices and gloo between processes on CPUs."""

import signal
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist

from bench import process
from bench.host import ranks


@contextmanager
def join_ranks(me, device):
    """Wait until all ranks have joined, and at the end until all are there. device: "cpu", "cuda" ..."""
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    # A rank that finished its step after Ctrl-C would wait for the others in vain.
    process.handle(signal.SIG_DFL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    group = TorchGroup()
    group.ranks = me
    yield group
    group.barrier()  # a rank that leaves early would look like one that was killed
    dist.destroy_process_group()


class TorchGroup(ranks.Group):
    """The ranks that torchrun has started. The contract is in bench/host/ranks.py.

    Clock and barrier are messages between CPUs, by gloo, on every device: a rank that ends is noticed at once.
    """

    def clock(self):
        return self.share(time.perf_counter())

    def barrier(self):
        dist.all_reduce(torch.zeros(1))

    def gather(self, value):
        values = [None] * self.ranks.world_size
        dist.all_gather_object(values, value)
        return values

    def share(self, number):
        shared = torch.tensor(number, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.item()
