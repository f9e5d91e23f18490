"""The ranks of PyTorch: torch.distributed, with NCCL between CUDA devices and gloo between processes on CPUs."""

import hashlib
import os
import signal
import socket
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench import cli
from bench.host import ranks
from bench.settings import SettingError

JOIN_SECONDS = 300
QUIET_SECONDS = 3.0  # of waiting for other ranks, before a line says so
# A rank that ends closes its connections, and the others notice at once. The limit is for one that hangs, and must be
# longer than the ranks may differ in their first step, which compiles.
HANG_SECONDS = 900


def join_ranks(me, device):
    """Return the Group of these ranks on a device ("cpu", "cuda" ...) once all of them have joined.

    Raises:
        SettingError: several ranks on MPS, or open_store() fails.
    """
    if device == "mps" and me.world_size > 1:
        raise SettingError(
            f"WORLD_SIZE='{me.world_size}' is impossible on MPS, because torch {torch.__version__} sends no tensors "
            "between its devices: USE_GPU=0 measures the CPUs, or start one rank"
        )
    return Group(me, device)


def open_store(me):
    """Open the store of torchrun's agent, or else of rank 0, and wait until all ranks have done so.

    torch.distributed would wait in C++ and not hear Ctrl-C; this waits in Python.

    Raises:
        SettingError: the port is taken, nobody answers, or some ranks do not come.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    place = f"MASTER_ADDR='{address}' MASTER_PORT='{port}'"
    keeps_it = me.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not keeps_it:
        wait_until(lambda: answers(address, port), f"rank {me.rank} waits for rank 0 at {place}: start rank 0", place)
    try:
        patience = timedelta(seconds=JOIN_SECONDS)
        store = dist.TCPStore(address, port, is_master=keeps_it, wait_for_workers=False, timeout=patience)
        store = dist.PrefixStore(f"bench-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        store.add("came", 1)
    except dist.DistError as error:
        fix = "choose a free MASTER_PORT" if keeps_it else "start rank 0 there"
        raise SettingError(f"{place} cannot be used ({str(error).strip().partition(chr(10))[0]}): {fix}") from None
    size = f"WORLD_SIZE='{me.world_size}'"
    wait_until(
        lambda: store.add("came", 0) >= me.world_size, f"rank {me.rank} waits for all ranks of {size}: start them", size
    )
    return store


def wait_until(is_done, message, setting):
    """Wait until is_done(), and print the message if that takes long; raises SettingError after JOIN_SECONDS."""
    began, is_quiet = time.monotonic(), True
    while not is_done():
        waited = time.monotonic() - began
        if is_quiet and waited > QUIET_SECONDS:
            is_quiet = False
            print(message, file=sys.stderr, flush=True)
        if waited > JOIN_SECONDS:
            raise SettingError(f"{setting}: not all ranks came within {JOIN_SECONDS} s: start them all")
        time.sleep(0.05)


def answers(address, port):
    """Whether a program accepts connections there."""
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def replicate(module):
    """Return the module for training: its gradients are averaged over all ranks, if there are others."""
    has_others = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return DistributedDataParallel(module, gradient_as_bucket_view=True) if has_others else module


def hash_weights(module):
    """Return a hash of the bits of all trainable weights."""
    found = hashlib.sha256()
    for weight in filter(lambda each: each.requires_grad, module.parameters()):
        found.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
    return found.hexdigest()


class AllReduce:
    """Sum values over all ranks, in place, as nccl-tests do.

    Each call makes the values world-size times larger. Before they overflow they are scaled back.
    """

    def __init__(self):
        self.size, self.calls = dist.get_world_size(), 0
        self.every = 60 // max(1, self.size.bit_length())

    def __call__(self, values):
        dist.all_reduce(values)
        self.calls += 1
        if self.calls % self.every == 0:
            values.mul_(float(self.size) ** -self.every)
        return values


class Group(ranks.Group):
    """The ranks that torchrun or Slurm has started. The contract is in bench/host/ranks.py.

    Clock and barrier are messages between CPUs, by gloo, on every device: a rank that ends is noticed at once.
    """

    def __init__(self, me, device):
        self.ranks, self._stop = me, False
        own = dist.get_default_backend_for_device(device)
        dist.init_process_group(
            own if own == "gloo" else f"cpu:gloo,{device}:{own}",  # gloo has no MPS, which one rank does not need
            store=open_store(me),
            rank=me.rank,
            world_size=me.world_size,
            timeout=timedelta(seconds=HANG_SECONDS),
        )
        cli.handle(self._note_signal, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._nothing = torch.zeros(1)
        here = socket.gethostname(), os.getpid()
        self.peers = tuple(pid for host, pid in self.gather(here) if host == here[0] and pid != here[1])

    def _note_signal(self, number, frame):
        """Let rank 0's clock stop all ranks at the same step; a second signal ends this process at once."""
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True

    def clock(self):
        stops = float(self._stop and self.ranks.rank == 0)
        reading = torch.tensor([time.perf_counter(), stops], dtype=torch.float64)
        dist.broadcast(reading, 0)
        seconds, stops = reading.tolist()
        if stops:
            self._stop = False
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

    def share(self, number):
        """Return rank 0's number on all ranks."""
        shared = torch.tensor([number], dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.item()

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
        return self._group.share(self._session.read())
