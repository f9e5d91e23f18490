"""Free memory and shared memory, of machines and containers that are not here."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from bench.host import meters, resources
from bench.host.ranks import Ranks
from bench.settings import SettingError

GB = 10**9
CACHE = f"anon 5\ninactive_file {GB}\nfile 7"  # unused file pages
TOTAL = {"memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {GB}\ntotal_unevictable 0"}  # of version 1
V2 = "0::/user.slice/job\n"
V1 = "3:cpuset:/\n2:cpu,cpuacct:/slurm/job\n1:memory:/slurm/job\n0::/\n"


def write_cgroup(monkeypatch, root, own, files):
    """Write the files of cgroups, and which of them this process is in."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    monkeypatch.setattr(resources, "CGROUP", root)
    read_text = resources.read_text
    monkeypatch.setattr(resources, "read_text", lambda path: own if path == "/proc/self/cgroup" else read_text(path))


@pytest.mark.parametrize(
    ("files", "ranks", "free"),
    [
        ({"memory.max": 12 * GB, "memory.current": 12 * GB, "memory.stat": CACHE}, 1, GB),
        ({"memory.max": 20 * GB, "memory.current": 0}, 1, 16 * GB),
        ({"memory.max": "max", "memory.current": GB}, 8, 2 * GB),
        (TOTAL | dict.fromkeys([f"memory/memory.{name}_in_bytes" for name in ("limit", "usage")], 8 * GB), 1, GB),
    ],
)
def test_available_memory_is_the_least_of_all_limits(monkeypatch, tmp_path, files, ranks, free):
    write_cgroup(monkeypatch, tmp_path, "", files)
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GB))
    monkeypatch.setattr(resources, "read_ranks", lambda: Ranks(0, ranks, 0, ranks))
    assert resources.available_bytes() == free


@pytest.mark.parametrize(
    ("own", "files", "quota", "cores"),
    [
        (V2, {"cpu.max": "150000 100000"}, 1.5, 1),
        (V2, {"user.slice/job/cpu.max": "max 100000", "user.slice/cpu.max": "50000 100000"}, 0.5, 1),
        (V2, {"cpu.max": "max 100000"}, math.inf, 2),
        (V1, {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5, 1),  # a container's
    ],
)
def test_usable_cores_are_those_of_the_quota(monkeypatch, tmp_path, own, files, quota, cores):
    write_cgroup(monkeypatch, tmp_path, own, files)
    monkeypatch.setattr(resources, "USABLE_CPUS", {0, 3})
    assert (resources.read_quota(), resources.usable_cores()) == (quota, cores)


def test_without_enough_threads_nothing_starts(monkeypatch):
    monkeypatch.setattr(resources.threading.Thread, "start", Mock(side_effect=RuntimeError))
    with pytest.raises(SettingError, match="ulimit -u"):
        resources.check_threads()


VM_STAT = """(page size of 16384 bytes)
Pages free:                                 9436.
Pages active:                             774260.
Pages inactive:                           915780.
Swapouts:                                   4112.
"""


def test_memory_and_swap_of_a_mac_are_those_of_vm_stat(monkeypatch):
    for module in (resources, meters):
        monkeypatch.setattr(module, "output_of", {"vm_stat": VM_STAT}.get)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(resources, "CGROUP", Path("/none"))
    assert resources.available_bytes() == (9436 + 915780) * 16384
    assert meters.count_swapped() == 4112
