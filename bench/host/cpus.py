"""The CPUs that this process may use. Standard library only."""

import os
from pathlib import Path


def usable_cpus(pid=0):
    """Return the numbers of the CPUs that a process, by default this one, may run on; a cluster may bind it to some."""
    return os.sched_getaffinity(pid) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def usable_cores():
    """Return the number of cores that this process may use, which a cluster or a container may limit."""
    cores = len(usable_cpus())
    return max(1, min(cores, int(cpu_quota() or cores)))


def cpu_quota(path="/sys/fs/cgroup/cpu.max"):
    """Return the CPUs that a container's quota allows (cgroup v2 only), or None if there is no quota.

    https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    try:
        quota, period = Path(path).read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no such file, or "max"
        return None
