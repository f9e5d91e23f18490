"""The CPUs that this process may use. Standard library only."""

import os

from bench.host.environment import read_text


def usable_cpus():
    """Return the numbers of the CPUs that this process may run on; a cluster may bind it to some."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


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
