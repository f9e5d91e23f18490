"""Limits of this machine and container: free memory and shared memory.

Linux kills a process that takes too much, so these limits are checked before anything is allocated.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from pathlib import Path

from bench.host import sensors
from bench.host.environment import GIB, read_text
from bench.host.ranks import read_ranks


def available_bytes():
    """Return the memory in bytes that this process can use without swapping; None if the system does not report it."""
    free = [sensors.psutil.virtual_memory().available] if sensors.psutil else []
    free += cgroup_free_bytes()
    return read_ranks().share(min(free)) if free else None


def cgroup_free_bytes(groups="/proc/self/cgroup", root="/sys/fs/cgroup"):
    """Return the bytes that each memory limit of this process's control group and of its parents leaves.

    Unused file pages count as free, because the kernel drops them before it kills a process. A container sees only the
    root. https://docs.kernel.org/admin-guide/cgroup-v2.html#memory
    """
    own, free = re.search(r"^0::/(.*)$", read_text(groups), re.MULTILINE), []
    folder = Path(root) / own[1] if own else Path(root)
    for group in (folder, *(parent for parent in folder.parents if parent.is_relative_to(root))):
        limit, use = read_text(group / "memory.max").strip(), read_text(group / "memory.current").strip()
        if limit.isdecimal() and use.isdecimal():  # "max": there is no limit
            unused = re.search(r"^inactive_file (\d+)$", read_text(group / "memory.stat"), re.MULTILINE)
            free.append(int(limit) - int(use) + int(unused[1] if unused else 0))
    return free


def find_worker_shortage(workers, queued, batch_bytes, shared_memory="/dev/shm"):
    """Explain why input workers cannot share their batches with this process on Linux, with the fix; "" if they can.

    Args:
        queued: batches that each worker may have ready or in its hands.
    """
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
