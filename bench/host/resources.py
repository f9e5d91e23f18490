"""Limits of this machine and container: CPUs, free memory and shared memory.

Linux kills a process that takes too much memory, so these limits are checked before anything is allocated.
"""

import math
import os
import re
import sys

import psutil

from bench.host.environment import find_card, output_of, read_text
from bench.host.ranks import read_ranks

SHARED_GB = 32  # memory that the system and its GPU share: with less, training with large batches swaps
CGROUP = "/sys/fs/cgroup"  # version 2, in a container its own: https://docs.kernel.org/admin-guide/cgroup-v2.html
# The numbers of the CPUs that this process may run on; a cluster may bind it to some.
USABLE_CPUS = set(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))  # macOS does not have it


def usable_cores():
    """Return the number of cores that this process may use, which a cluster or a container may limit."""
    quota, _, period = read_text(f"{CGROUP}/cpu.max").partition(" ")  # "max 100000", or no such file
    limit = int(quota) // int(period) if quota.isdecimal() else math.inf
    return max(1, min(len(USABLE_CPUS), limit))


def available_bytes():
    """Return the memory in bytes that this rank can use without swapping: its share of the system's or container's.

    A limit that cgroup v1 sets is not known. Unused file pages count as free, because the kernel drops them before it
    kills a process.
    """
    if sys.platform == "darwin":  # psutil 7.2.2 cannot read it on macOS 27
        counts = r"(?:page size of |^Pages (?:free|inactive|speculative): +)(\d+)"
        page, *pages = map(int, re.findall(counts, output_of("vm_stat") or "", re.MULTILINE))
        free = page * sum(pages)
    else:
        free = psutil.virtual_memory().available
    limit, use, statistics = (read_text(f"{CGROUP}/memory.{name}").strip() for name in ("max", "current", "stat"))
    if limit.isdecimal():  # else "max", or no such file
        unused = re.search(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
        free = min(free, int(limit) - int(use) + int(unused[1] if unused else 0))
    return read_ranks().share(free)


def shares_memory(device):
    """Return whether a Device's arrays take the system's memory: a CPU's, or those of a Mac, DGX Spark or Jetson."""
    if device.is_integrated is not None:
        return device.is_integrated
    return device.type != "cuda" or bool((card := find_card()) and card.memory is None)


def read_card_gb():
    """Return the memory of the NVIDIA card in units of 2**30 bytes; infinite if it is unknown."""
    card = find_card()
    return card.memory / 1024 if card and card.memory else math.inf
