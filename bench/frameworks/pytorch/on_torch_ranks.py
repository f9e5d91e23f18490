"""The ranks of PyTorch: torch.distributed, with NCCL between CUDA devices and gloo between processes on CPUs."""

import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench import process
from bench.host import ranks


def replicate(module):
    """Return the module for training: its gradients are averaged over all ranks, if there are others."""
    has_others = dist.is_initialized() and dist.get_world_size() > 1
    return DistributedDataParallel(module, gradient_as_bucket_view=True) if has_others else module


class TorchGroup(ranks.Group):
    """The ranks that torchrun has started. The contract is in bench/host/ranks.py.

    Clock and barrier are messages between CPUs, by gloo, on every device: a rank that ends is noticed at once.
    """

    def __init__(self, me, device):
        """Wait until all ranks have joined. device: "cpu", "cuda" ..."""
        self.ranks = me
        dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
        # A rank that finished its step after Ctrl-C would wait for the others in vain.
        process.handle(signal.SIG_DFL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def clock(self):
        return self.share(time.perf_counter())

    def barrier(self):
        """Wait for all ranks."""
        dist.all_reduce(torch.zeros(1))

    def in_step(self, session):
        def synchronize():
            session.context.synchronize()
            self.barrier()

        session.synchronize = synchronize
        session.read = lambda: self.share(session.context.read(session.last_result))
        return session

    def gather(self, value):
        values = [None] * self.ranks.world_size
        dist.all_gather_object(values, value)
        return values

    def share(self, number):
        """Return rank 0's number on all ranks."""
        shared = torch.tensor(number, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.item()

    def __enter__(self):
        return self

    def __exit__(self, error_type, error, trace):
        if error_type is None:
            self.barrier()  # a rank that leaves early would look like one that was killed
            dist.destroy_process_group()
