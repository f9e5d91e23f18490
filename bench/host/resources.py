"""Limits of this machine and container: CPUs, free memory and shared memory.

Linux kills a process that takes too much memory, so these limits are checked before anything is allocated.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys

import psutil

from bench.host.environment import GIB, find_card, read_text
from bench.host.ranks import read_ranks

SHARED_GB = 32  # memory that the system and its GPU share: with less, training with large batches swaps


def usable_cpus():
    """Return the numbers of the CPUs that this process may run on; a cluster may bind it to some."""
    if not hasattr(os, "sched_getaffinity"):  # as on macOS
        return set(range(os.cpu_count() or 1))
    return os.sched_getaffinity(0)  # pyright: ignore[reportAttributeAccessIssue]


def usable_cores():
    """Return the number of cores that this process may use, which a cluster or a container may limit."""
    cores = len(usable_cpus())
    return max(1, min(cores, int(cpu_quota() or cores)))


def cpu_quota():
    """Return the CPUs that a container's quota allows; None if there is none, or if it is set by cgroup v1.

    https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    quota, _, period = read_text("/sys/fs/cgroup/cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() else None  # "max", or no such file


def available_bytes(group="/sys/fs/cgroup"):
    """Return the memory in bytes that this rank can use without swapping: its share of the system's or container's.

    A limit that cgroup v1 sets is not known. Unused file pages count as free, because the kernel drops them before it
    kills a process.
    """
    free = psutil.virtual_memory().available
    limit, use, statistics = (read_text(f"{group}/memory.{name}").strip() for name in ("max", "current", "stat"))
    if limit.isdecimal():  # else "max", or no such file
        unused = re.search(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
        free = min(free, int(limit) - int(use) + int(unused[1] if unused else 0))
    return read_ranks().share(free)


def shares_memory(device):
    """Return whether a Device's arrays take the system's memory: a CPU's, or those of a Mac, DGX Spark or Jetson."""
    if device.is_integrated is not None:
        return device.is_integrated
    return device.kind != "cuda" or bool((card := find_card()) and not card.memory[0].isdigit())


def find_worker_shortage(workers, queued, batch_bytes, shared_memory="/dev/shm"):
    """Explain why workers with `queued` batches each cannot share them with this process on Linux; "" if they can."""
    if sys.platform != "linux":
        return ""
    needed = read_ranks().local_world_size * workers * queued * batch_bytes
    free = shutil.disk_usage(shared_memory).free if os.access(shared_memory, os.W_OK) else 0
    if free >= needed:
        return ""
    return (
        f"NUM_WORKERS='{workers}' needs {needed / 1e6:.0f} MB for its batches and {shared_memory} has {free / 1e6:.0f} "
        f"MB: `docker run --shm-size={math.ceil(needed / GIB)}g`, or NUM_WORKERS={int(workers * free / needed)}"
    )
