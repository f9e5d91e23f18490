"""Ranks: equal processes, one a device, that do the same work in step.

The environment says which one this process is, as torchrun sets it
(https://docs.pytorch.org/docs/stable/elastic/run.html). bench/processes.py sets the same for NUM_DEVICES.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

from bench.machine import sensors
from bench.settings import SettingError

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
STARTED_HERE = "RANKS_OF_NUM_DEVICES"  # set where processes.py started the ranks
STAY_SECONDS = 3.0  # of the rank that wrote about a missing one, so that no other takes it for missing too
LOST = 4  # exit status of a rank that ends because another one has ended


class LostRank(Exception):
    """Another rank has ended, and the row about it is not this rank's to write."""


@dataclass(frozen=True)
class Ranks:
    """This process among the others; by itself it is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # on its node
    local_world_size: int = 1
    nodes: int = 1
    are_many: bool = False  # a group has to be joined; also a group of one, where torchrun asks for that
    started_here: bool = False  # by processes.py, which sees how each of them ends

    def share(self, count):
        """This rank's part of the node's cores or workers, at least 1."""
        return max(1, count // self.local_world_size)


def describe_lost(gone, world_size):
    named = " and ".join(f"rank {rank}" for rank in gone)
    return f"{named} of {world_size} ended without a word: killed, or crashed"


def find_missing(me):
    """([ranks of this node that have ended], whether this rank is the first of the others), before they have met.

    torchrun ends the others by a signal, and does not say why. All of them are its children.
    """
    if sensors.psutil is None:
        return [], False
    alive = set()
    for process in sensors.psutil.Process(os.getppid()).children():
        try:
            alive.add(int(process.environ().get("RANK", -1)))
        except (sensors.psutil.Error, OSError):  # it has ended
            continue
    first = me.rank - me.local_rank
    here = range(first, first + me.local_world_size)
    return sorted(set(here) - alive), me.rank == min(alive & set(here), default=me.rank)


def read_ranks(environ=os.environ):
    """The Ranks that the environment describes; raises SettingError where it does so in part."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(environ):  # one of them alone is another program's
        return Ranks()
    for name in NEEDED:
        if name != "MASTER_ADDR" and not re.fullmatch("[0-9]{1,6}", environ.get(name, "")):
            raise SettingError(
                f"{name}={environ.get(name, '')!r} must be a whole number beside RANK='{environ['RANK']}': start by "
                "torchrun, which sets it (docs/scaling.md), or unset RANK and WORLD_SIZE"
            )
    rank, size, local_rank, local_size, _ = (int(environ[name]) for name in NEEDED if name != "MASTER_ADDR")
    nodes = int(environ.get("GROUP_WORLD_SIZE", 0)) or -(-size // local_size)
    return Ranks(rank, size, local_rank, local_size, nodes, True, STARTED_HERE in environ)


class Group:
    """What the ranks do together. This one has a single rank; a framework's has as many as were started."""

    ranks = Ranks()
    peers: tuple[int, ...] = ()  # process ids of the other ranks on this machine

    def clock(self):
        """Rank 0's wall seconds, on all ranks: whatever follows from the clock is decided alike on all of them.

        Raises:
            KeyboardInterrupt: Ctrl-C or the like reached rank 0; on all ranks at the same reading.
        """
        return time.perf_counter()

    def watch_over(self, session):
        """The session, with a barrier that waits for all ranks and rank 0's probe."""
        return session

    def gather(self, value):
        """[the value of each rank], on all ranks."""
        return [value]

    def find_lost(self, error):
        """What is known of the ranks that have ended, "" where an error is this rank's own."""
        return ""

    def claims(self, lost=False):
        """Whether this rank is to write the row of a failure; exactly one of them is."""
        return True

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        pass


ALONE = Group()
