"""Free memory and shared memory, of machines and containers that are not here."""

import sys
from types import SimpleNamespace

import pytest

from bench.host import meters, resources
from bench.host.ranks import Ranks

GB = 10**9
CACHE = f"anon 5\ninactive_file {GB}\nfile 7"  # unused file pages


@pytest.mark.parametrize(
    ("files", "ranks", "free"),
    [
        ({"max": 12 * GB, "current": 12 * GB, "stat": CACHE}, 1, GB),
        ({"max": 20 * GB, "current": 0}, 1, 16 * GB),
        ({"max": "max", "current": GB}, 8, 2 * GB),
    ],
)
def test_available_memory_is_the_least_of_all_limits(monkeypatch, tmp_path, files, ranks, free):
    for name, text in files.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GB))
    monkeypatch.setattr(resources, "read_ranks", lambda: Ranks(0, ranks, 0, ranks))
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    assert resources.available_bytes() == free


@pytest.mark.parametrize(("limit", "cores"), [("150000 100000", 1), ("50000 100000", 1), ("max 100000", 2), ("", 2)])
def test_usable_cores_are_those_of_the_quota(monkeypatch, tmp_path, limit, cores):
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    monkeypatch.setattr(resources, "USABLE_CPUS", {0, 3})
    assert resources.usable_cores() == cores


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
    monkeypatch.setattr(resources, "CGROUP", "/none")
    assert resources.available_bytes() == (9436 + 915780) * 16384
    assert meters.count_swapped() == 4112
