"""Limits of this machine and container: CPUs, free memory and shared memory.

Linux kills a process that takes too much memory, so these limits are checked before anything is allocated.
"""

import math
import os
import re
import sys
import threading
from pathlib import Path

import psutil

from bench.host.environment import find_card, output_of, read_text
from bench.host.ranks import read_ranks
from bench.settings import SettingError

CGROUP = Path("/sys/fs/cgroup")  # version 2, or version 1 in a folder for each controller, as in RHEL 8
# The numbers of the CPUs that this process may run on; a cluster may bind it to some.
USABLE_CPUS = set(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))  # macOS does not have it


def read_limits(controller, *names):
    """Yield (folder, the two numbers in files with these names) of each of this process's cgroups that has a limit."""
    own = re.search(rf"^\d+:([^:]*\b{controller}\b[^:]*)?:/(.*)", read_text("/proc/self/cgroup"), re.MULTILINE)
    root = CGROUP / controller if (CGROUP / controller).exists() else CGROUP
    path = root / (own[2] if own else "")  # a container's own is the outermost, whatever its name outside
    for folder in (path, *path.parents):
        text = " ".join(read_text(folder / name).strip() for name in names)
        if found := re.match(r" *(\d+) (\d+)", text):  # without a limit, it begins with "max" or "-1"
            yield folder, int(found[1]), int(found[2])


def read_quota():
    """Return how many cores the CPU quotas of this process allow, such as 1.5; infinite without any."""
    limits = read_limits("cpu", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    return min((quota / period for _, quota, period in limits), default=math.inf)


def usable_cores():
    """Return the number of cores that this process may use, which a cluster or a container may limit."""
    return max(1, int(min(len(USABLE_CPUS), read_quota())))


def check_threads():
    """Raise SettingError unless a process could start its threads: libraries hang or abort without them."""
    needed = 20 + 2 * usable_cores()
    end = threading.Event()
    try:
        for _ in range(needed):
            threading.Thread(target=end.wait, daemon=True).start()
    except RuntimeError:
        raise SettingError(f"{needed} threads cannot be started: raise `ulimit -u` or a container's pids.max") from None
    finally:
        end.set()


def available_bytes():
    """Return the memory in bytes that this rank can use without swapping: its share of the system's or container's.

    Unused file pages count as free, because the kernel drops them before it kills a process.
    """
    if sys.platform == "darwin":  # psutil 7.2.2 cannot read it on macOS 27
        counts = r"(?:page size of |^Pages (?:free|inactive|speculative): +)(\d+)"
        page, *pages = map(int, re.findall(counts, output_of("vm_stat") or "", re.MULTILINE))
        free = page * sum(pages)
    else:
        free = psutil.virtual_memory().available
    names = (f"memory.{name}" for name in ("max", "current", "limit_in_bytes", "usage_in_bytes"))
    for folder, limit, use in read_limits("memory", *names):
        unused = re.findall(r"inactive_file (\d+)$", read_text(folder / "memory.stat"), re.MULTILINE)
        free = min(free, limit - use + sum(map(int, unused[-1:])))  # the last one of version 1 is the total
    return read_ranks().share(free)


def shares_memory(device):
    """Return whether a Device's arrays take the system's memory: a CPU's, or those of a Mac, DGX Spark or Jetson."""
    if device.is_integrated is not None:
        return device.is_integrated
    return device.type != "cuda" or bool((card := find_card()) and card.memory is None)
