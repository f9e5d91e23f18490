"""Limits of this machine, container and shell: free memory, shared memory, open files.

Each rank of a machine counts on its share only. Linux reports a process that takes too much by killing it, so these
limits are checked before anything is allocated.
"""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
import sys
from pathlib import Path

from bench.host import sensors
from bench.host.environment import GIB, read_text
from bench.host.ranks import read_ranks

# Of DataLoader's main process. Measured with torch 2.15: pipes and a sentinel of each worker; inputs and labels of each
# batch in shared memory; a reserve for libraries, because a GPU's driver opens dozens.
FILES_PER_WORKER, FILES_PER_BATCH, SPARE_FILES = 4, 2, 64
# (files of a cgroup's limit and use, name of its unused file pages in memory.stat) of versions 2 and 1.
CGROUP_V2 = "memory.max", "memory.current", "inactive_file"
CGROUP_V1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


def available_bytes():
    """Return the memory in bytes that this process can use without swapping; None if the system does not report it.

    That is the least of what the machine has available and what each cgroup limit leaves, divided by the local ranks.
    """
    free = [sensors.psutil.virtual_memory().available] if sensors.psutil else []
    free += cgroup_free_bytes()
    return read_ranks().share(min(free)) if free else None


def cgroup_free_bytes(groups="/proc/self/cgroup", root="/sys/fs/cgroup"):
    """Return the bytes that each memory limit of this process's control groups leaves.

    The limits of parent groups count as well. A container may not see the folder of its own group: then only the
    folders above it exist, and the root has its limit. Unused file pages count as free, because the kernel drops them
    before it kills a process. See https://docs.kernel.org/admin-guide/cgroup-v2.html#memory and cgroup-v1/memory.html.
    """
    free = []
    for line in read_text(groups).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = Path(root) / ("memory" if controllers else "")
        limit_file, use_file, unused_pages = CGROUP_V1 if controllers else CGROUP_V2
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            limit, use = read_text(group / limit_file).strip(), read_text(group / use_file).strip()
            if limit.isdecimal() and use.isdecimal():  # version 2 has "max" for no limit
                unused = re.search(rf"^{unused_pages} (\d+)$", read_text(group / "memory.stat"), re.M)
                free.append(int(limit) - int(use) + int(unused[1] if unused else 0))
            if group == base:
                break
    return free


def find_worker_shortage(workers, queued, batch_bytes, shared_memory="/dev/shm"):
    """Explain why input workers cannot share their batches with this process, with the fix; "" if they can.

    Raises this process's soft limit of open files as far as needed and permitted. On macOS nothing else is checked,
    because torch shares tensors there by the names of files, which are not kept open and are not in /dev/shm.

    Args:
        queued: batches that each worker may have ready or in its hands.
    """
    files = len(os.listdir("/dev/fd")) + SPARE_FILES + workers * (FILES_PER_WORKER + FILES_PER_BATCH * queued)
    allowed = raise_open_files(files)
    if sys.platform != "linux":
        return ""
    if allowed < files:
        return (
            f"NUM_WORKERS='{workers}' needs {files} open files and the hard limit is {allowed}: raise it "
            f"(`ulimit -Hn {files}` as an administrator, `docker run --ulimit nofile={files}`), or use fewer workers"
        )
    needed = read_ranks().local_world_size * workers * queued * batch_bytes
    try:
        free = shutil.disk_usage(shared_memory).free if os.access(shared_memory, os.W_OK) else 0
    except OSError:
        free = 0
    if free >= needed:
        return ""
    return (
        f"NUM_WORKERS='{workers}' needs {needed / 1e6:.0f} MB for its batches and {shared_memory} has {free / 1e6:.0f} "
        f"MB: `docker run --shm-size={math.ceil(needed / GIB)}g`, or NUM_WORKERS={int(workers * free / needed)}"
    )


def raise_open_files(wanted):
    """Raise the soft limit of open files to `wanted`, at most to the hard limit; return the limit that now holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    except (OSError, ValueError):  # macOS has a lower limit of its own, kern.maxfilesperproc
        return soft
    return reachable
