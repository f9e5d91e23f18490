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
        ({"max": 12 * GB, "current": GB}, 1, 11 * GB),
        ({"max": 12 * GB, "current": 12 * GB, "stat": CACHE}, 1, GB),
        ({"max": 20 * GB, "current": 0}, 1, 16 * GB),
        ({"max": "max", "current": GB}, 1, 16 * GB),
        ({}, 8, 2 * GB),
    ],
)
def test_available_memory_is_the_least_of_all_limits(monkeypatch, tmp_path, files, ranks, free):
    for name, text in files.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GB))
    monkeypatch.setattr(resources, "read_ranks", lambda: Ranks(0, ranks, 0, ranks))
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    assert (resources.available_bytes(), resources.cpu_quota()) == (free, 1.5)


PAGES = {"free": 9436, "active": 774260, "inactive": 915780, "speculative": 1639, "throttled": 0, "purgeable": 41217}
VM_STAT = "\n".join(f"Pages {name + ':':<16}{count:>16}." for name, count in PAGES.items())
MACOS_27 = {
    "vm_stat": f"Mach Virtual Memory Statistics: (page size of 16384 bytes)\n{VM_STAT}\n",
    "sysctl": "total = 10240.00M  used = 9689.94M  free = 550.06M  (encrypted)\n",
}


def test_memory_and_swap_of_a_mac_are_known_where_psutil_cannot_read_them(monkeypatch):
    def refuse():
        raise RuntimeError("host_statistics64(HOST_VM_INFO64) syscall failed: (ipc/mig) array not large enough")

    monkeypatch.setattr(resources.psutil, "virtual_memory", refuse)
    for module in (resources, meters):
        monkeypatch.setattr(module, "output_of", lambda name, *rest: MACOS_27[name])
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(resources, "CGROUP", "/none")
    assert resources.available_bytes() == (9436 + 915780 + 1639) * 16384
    assert meters.swapped_bytes() == 9689.94 * 2**20


def test_workers_that_need_more_shared_memory_than_docker_gives_are_told_how_much(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    said = []
    for free in (2**26, 2**31):
        monkeypatch.setattr(resources.shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        said.append(resources.find_worker_shortage(16, 3, 64 * 3 * 224 * 224 * 4, tmp_path))
    assert "--shm-size=2g" in said[0]
    assert said[1] == ""
    assert resources.count_workers(16, 3, 2**28, tmp_path) == 2  # of 2 GiB
