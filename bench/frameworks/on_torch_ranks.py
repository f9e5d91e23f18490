"""The ranks of PyTorch: torch.distributed, with NCCL between CUDA devices and gloo between processes on CPUs."""

import hashlib
import os
import signal
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench import door
from bench.machine import ranks
from bench.machine.sensors import psutil
from bench.settings import SettingError

JOIN_SECONDS = 300
# A rank that ends closes its connections, and the others notice at once. The limit is for one that hangs, and must be
# longer than the ranks may differ in their first step, which compiles.
HANG_SECONDS = 900
RANK_0_FIRST_SECONDS = 2.0  # a failure that all ranks share, or a lost rank, is rank 0's to write where it is alive
CLOSED = ("closed by peer", "connection reset", "connection refused", "broken pipe", "remote process exited")


def join_ranks(me, device):
    """The Group of these ranks on a device ("cpu", "cuda" ...); returns once all of them have joined."""
    try:
        return Group(me, device)
    except RuntimeError as error:
        if is_closed(error):
            raise ranks.LostRank(str(error)) from None
        raise


def open_store(me):
    """The store of torchrun's agent, or else of rank 0, once all ranks have opened it; raises SettingError.

    torch.distributed would wait for the others where no signal is heard.
    """
    where, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    keeps_it = me.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    began, patience, came = time.monotonic(), timedelta(seconds=JOIN_SECONDS), 0
    try:
        store = dist.TCPStore(where, port, is_master=keeps_it, wait_for_workers=False, timeout=patience)
        store = dist.PrefixStore(f"bench-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        came = store.add("came", 1)
        while came < me.world_size and time.monotonic() < began + JOIN_SECONDS:
            time.sleep(0.05)
            came = store.add("came", 0)
    except dist.DistError as error:
        raise SettingError(
            f"MASTER_ADDR='{where}': no answer at port {port} ({first_line(error)}): start rank 0"
        ) from None
    if came < me.world_size:
        raise SettingError(f"WORLD_SIZE='{me.world_size}': {came} came within {JOIN_SECONDS} s: start the others too")
    return store


def first_line(error):
    return str(error).strip().partition("\n")[0]


def is_closed(error):
    """Whether an error says that the connection to another rank was closed."""
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in CLOSED)


def is_replicated():
    return dist.is_available() and dist.is_initialized()


def replicate(module):
    """The module for training: its gradients are averaged over all ranks, if there are others."""
    return DistributedDataParallel(module, gradient_as_bucket_view=True) if is_replicated() else module


def hash_weights(module):
    """A hash of the bits of all trainable weights."""
    found = hashlib.sha256()
    for weight in module.parameters():
        found.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
    return found.hexdigest()


class AllReduce:
    """The sum over all ranks, in place, as nccl-tests call it.

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
    """The ranks that torchrun or processes.py has started. The contract is in bench/machine/ranks.py.

    Clock and barrier are messages of the CPU, by gloo, whatever the device: a rank that ends is noticed at once.
    """

    def __init__(self, me, device):
        self.ranks, self._stop, self._has_failed = me, False, False
        self._store = open_store(me)
        own = dist.get_default_backend_for_device(device)
        dist.init_process_group(
            "gloo" if device == "cpu" else f"cpu:gloo,{device}:{own}",
            store=self._store,
            rank=me.rank,
            world_size=me.world_size,
            timeout=timedelta(seconds=HANG_SECONDS),
        )
        door.handle(self._note_signal, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._nothing = torch.zeros(1)
        self._places = self.gather((socket.gethostname(), os.getpid()))
        here = socket.gethostname()
        self.peers = tuple(pid for host, pid in self._places if host == here and pid != os.getpid())

    def _note_signal(self, number, frame):
        """Rank 0's clock tells all ranks to stop at the same step; a second signal ends this process at once."""
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
            self.barrier()  # an error where the signal came because a rank has ended
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
        """Rank 0's number, on all ranks."""
        shared = torch.tensor([number], dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.item()

    def find_lost(self, error):
        here, was_closed = socket.gethostname(), is_closed(error)
        for patience in range(20 if was_closed else 1):  # until a process that is ending has ended
            time.sleep(0.1 * bool(patience))
            gone = [i for i, (host, pid) in enumerate(self._places) if host == here and has_ended(pid)]
            if gone:
                return ranks.describe_lost(gone, self.ranks.world_size)
        return f"a rank on another machine ended (rank {self.ranks.rank} noticed)" if was_closed else ""

    def claims(self, lost=False):
        self._has_failed = True
        if lost and self.ranks.started_here:  # processes.py saw which one ended, and how
            return False
        if self.ranks.rank:
            time.sleep(RANK_0_FIRST_SECONDS)
        try:
            return self._store.add("failures", 1) == 1
        except RuntimeError:  # rank 0 may have kept the store
            return lost and self.ranks.rank == 1

    def __exit__(self, kind, error, trace):
        if kind is None and not self._has_failed:
            self.barrier()  # a rank that leaves early would look like one that was killed
            dist.destroy_process_group()
        else:
            self.claims()  # what ends this rank is no lost rank to the others


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


def has_ended(pid):
    """Whether a process of this machine has ended; one that nobody has waited for yet has."""
    if psutil:
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    try:
        os.kill(pid, 0)
    except OSError:
        return True
    return False
