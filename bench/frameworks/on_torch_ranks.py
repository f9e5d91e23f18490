"""The ranks of PyTorch: torch.distributed, with NCCL between CUDA devices and gloo between processes on CPUs."""

import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench import cli
from bench.host import ranks
from bench.settings import SettingError

# A rank that ends closes its connections, and the others notice at once. The limit is for one that hangs or never
# starts, and must be longer than the ranks may differ in their first step, which compiles.
HANG_LIMIT = timedelta(minutes=15)


def replicate(module):
    """Return the module for training: its gradients are averaged over all ranks, if there are others."""
    has_others = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return DistributedDataParallel(module, gradient_as_bucket_view=True) if has_others else module


class Group(ranks.Group):
    """The ranks that torchrun or Slurm has started. The contract is in bench/host/ranks.py.

    Clock and barrier are messages between CPUs, by gloo, on every device: a rank that ends is noticed at once.
    """

    def __init__(self, me, device):
        """Wait until all ranks have joined; raises SettingError if they cannot meet. device: "cpu", "cuda" ..."""
        self.ranks, self._nothing, self._is_stopped = me, torch.zeros(1), False
        own = dist.get_default_backend_for_device(device)  # for MPS gloo, which one rank does not need
        backend = own if own == "gloo" else f"cpu:gloo,{device}:{own}"
        try:
            dist.init_process_group(backend, init_method="env://", timeout=HANG_LIMIT)
        except dist.DistError as error:
            reason = str(error).strip().partition("\n")[0]
            raise SettingError(f"WORLD_SIZE='{me.world_size}': not all ranks came ({reason}): start them all") from None
        cli.handle(self._note_signal, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def _note_signal(self, number, frame):
        """Let rank 0's clock stop all ranks at the same step; a second signal ends this process at once."""
        if self._is_stopped:
            raise KeyboardInterrupt
        self._is_stopped = True

    def clock(self):
        seconds, stops = self.share(time.perf_counter(), self._is_stopped)
        if stops:
            self._is_stopped = False
            self.barrier()  # raises RuntimeError if the signal came because a rank has ended
            raise KeyboardInterrupt
        return seconds

    def barrier(self):
        dist.all_reduce(self._nothing)

    def watch_over(self, session):
        return SharedSession(session, self)

    def gather(self, value):
        found = [None] * self.ranks.world_size
        dist.all_gather_object(found, value)
        return found

    def share(self, *numbers):
        """Return rank 0's numbers on all ranks."""
        shared = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.tolist()

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.barrier()  # a rank that leaves early would look like one that was killed
            dist.destroy_process_group()


class SharedSession:
    """A session whose barrier waits for all ranks, and which reads what rank 0 reads."""

    def __init__(self, session, group):
        self._session, self._group = session, group

    def __getattr__(self, name):
        return getattr(self._session, name)

    def synchronize(self):
        self._session.synchronize()
        self._group.barrier()

    def read(self):
        (value,) = self._group.share(self._session.read())
        return value
