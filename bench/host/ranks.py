"""Ranks: equal processes, one for each device, that do the same work in step.

torchrun tells each process which rank it is, by environment variables
(https://docs.pytorch.org/docs/stable/elastic/run.html). bench/launch.py starts torchrun for NUM_DEVICES; on a cluster
the user starts it, or Slurm sets the variables.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from dataclasses import dataclass

from bench.settings import MOST_WORKERS, RUN, SettingError, usable_cpus

LATE_SECONDS = 20  # torchrun kills a rank that ignores SIGTERM after 30 s, which must not look like the first failure


@dataclass(frozen=True)
class Ranks:
    """Which of several ranks this process is; a process by itself is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # on its node
    local_world_size: int = 1
    nodes: int = 1
    are_many: bool = False  # there is a group to join; true for a group of one too, if torchrun was started for one
    launched: bool = False  # by bench/launch.py, which writes the row of a failure

    def share(self, count):
        """Divide the node's cores or workers among its ranks; returns this rank's part, at least 1."""
        return max(1, count // self.local_world_size)


def share_workers(workers, me, peers):
    """Return one rank's part of its machine's input workers, at least 1.

    NUM_WORKERS counts those of the whole machine. Its default counts the CPUs that this rank may use, which only some
    of the other ranks may use as well: Slurm can bind each rank to CPUs of its own.

    Args:
        me: the rank's Ranks.
        peers: process ids of the other ranks on this machine.
    """
    if "NUM_WORKERS" in os.environ:
        return me.share(workers)
    try:
        sharers = 1 + sum(not usable_cpus().isdisjoint(usable_cpus(peer)) for peer in peers)
    except ProcessLookupError:  # it has just ended, or is in another container
        return me.share(workers)
    return max(1, min(workers // sharers, MOST_WORKERS))


def read_ranks(environ=os.environ):
    """Read the Ranks from the environment; raises SettingError if a variable is missing or impossible."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(environ):  # another program may set one of them
        return Ranks()

    def number(name, least, most):
        text = environ.get(name, "")
        if not re.fullmatch("[0-9]{1,6}", text) or not least <= int(text) <= most:
            raise SettingError(
                f"{name}={text!r} must be a whole number from {least} to {most} (RANK={environ['RANK']!r} of "
                f"WORLD_SIZE={environ['WORLD_SIZE']!r}): start by torchrun, which sets it (docs/scaling.md), or unset "
                "RANK and WORLD_SIZE"
            )
        return int(text)

    size = number("WORLD_SIZE", 1, 999_999)
    rank, local_size = number("RANK", 0, size - 1), number("LOCAL_WORLD_SIZE", 1, size)
    local_rank = number("LOCAL_RANK", 0, local_size - 1)
    number("MASTER_PORT", 1, 65_535)
    nodes = number("GROUP_WORLD_SIZE", 1, size) if "GROUP_WORLD_SIZE" in environ else -(-size // local_size)
    return Ranks(rank, size, local_rank, local_size, nodes, True, RUN in environ)


def refuse_ranks(command):
    """Raise SettingError if torchrun or Slurm started this process of a command that starts its runs itself."""
    if read_ranks().are_many:
        raise SettingError(f"RANK and WORLD_SIZE are torchrun's, and `{command}` starts its runs itself: unset them")


def report_failure(message, row=None):
    """Write this rank's failure into torchrun's error file.

    The format is torchrun's own, so its report shows the message; `row` is for bench/launch.py.

    Returns:
        Whether there is such a file. Without torchrun there is none.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": message, "timestamp": str(int(time.time()))}
        failure = {"message": message, "extraInfo": extra, "row": row, "seconds": time.time()}
        with open(path, "w") as file:
            json.dump({"message": failure}, file, default=str)
    return bool(path)


def find_first_failure(failures):
    """Choose the failure that ended the others: the earliest one.

    Ranks that torchrun ended by SIGTERM come last. A killed rank writes no report, so it is known only from when
    torchrun noticed it, while the others report at once that they lost it: hence LATE_SECONDS.

    Args:
        failures: {rank: {"exit_status": int, "seconds": when, "report": what report_failure() wrote, or {}}}.

    Returns:
        (rank, exit status, report).
    """

    def order(rank):
        status, seconds = failures[rank]["exit_status"], failures[rank]["seconds"]
        return status in (130, -signal.SIGTERM), seconds - LATE_SECONDS * (status < 0), int(rank)

    rank = min(failures, key=order)
    return int(rank), failures[rank]["exit_status"], failures[rank]["report"]


class Group:
    """What the ranks do together. This one has a single rank; a framework's has as many as were started."""

    ranks = Ranks()
    peers: tuple[int, ...] = ()  # process ids of the other ranks on this machine

    def clock(self):
        """Return rank 0's wall seconds on all ranks, so that all of them take the same decisions.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM reached rank 0; on all ranks at the same reading.
        """
        return time.perf_counter()

    def watch_over(self, session):
        """Return the session with a barrier that waits for all ranks and with what rank 0 reads."""
        return session

    def gather(self, value):
        """Return [the value of each rank] on all ranks."""
        return [value]

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        pass


ALONE = Group()
