"""Ranks: equal processes, one for each device, that do the same work in step.

torchrun sets each one's environment variables: https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import os
import time
from typing import NamedTuple

NODES = "PET_NNODES"  # torchrun reads the number of machines from it, unless its command says otherwise


class Ranks(NamedTuple):
    """Which of several ranks this process is; a process by itself is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # on its node
    local_world_size: int = 1
    nodes: int = 1
    are_many: bool = False  # there is a group to join; true for a group of one too, if torchrun was started for one

    def share(self, count):
        """Divide the node's cores, workers or memory among its ranks; returns this rank's part, at least 1."""
        return max(1, count // self.local_world_size)


def read_ranks(environ=os.environ):
    """Read the Ranks from the variables that torchrun sets."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(environ):  # another program may set one of them
        return Ranks()
    defaults = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    rank, size, local_rank, local_size = (int(environ.get(name) or default) for name, default in defaults.items())
    return Ranks(rank, size, local_rank, local_size, -(-size // local_size), are_many=True)


class Group:
    """What the ranks do together. This one has a single rank; a framework's has as many as were started."""

    ranks = Ranks()

    # () -> rank 0's wall seconds on all ranks, so that all decide alike; Ctrl-C on rank 0 interrupts all here.
    clock = staticmethod(time.perf_counter)

    def barrier(self):
        """Wait for all ranks."""

    def share(self, number):
        """Return rank 0's number on all ranks."""
        return number

    def gather(self, value):
        """Return [the value of each rank] on all ranks."""
        return [value]
