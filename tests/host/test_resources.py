"""Free memory, shared memory and open files, of machines and containers that are not here."""

import sys
from types import SimpleNamespace

import pytest

from bench.host import resources, sensors

GB = 10**9
QUEUED, BATCH = 3, 38_535_168  # 64 images of 224 pixels in float32


@pytest.fixture
def cgroups(tmp_path):
    """Writes control groups: the lines of /proc/self/cgroup, and {file: text} below /sys/fs/cgroup."""

    def write(lines, files):
        (tmp_path / "cgroup").write_text(lines)
        for name, text in files.items():
            path = tmp_path / "fs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return resources.cgroup_free_bytes(tmp_path / "cgroup", tmp_path / "fs")

    return write


V2, JOB = "0::/\n", "0::/user.slice/job\n"
V1 = "4:memory:/docker/0123\n3:cpu,cpuacct:/docker/0123\n0::/\n"


@pytest.mark.parametrize(
    ("lines", "files", "free"),
    [
        (V2, {"memory.max": 2 * GB, "memory.current": GB}, [GB]),
        (
            JOB,
            {"user.slice/memory.max": 8 * GB, "user.slice/memory.current": 3 * GB}
            | {"user.slice/job/memory.max": "max", "user.slice/job/memory.current": GB},
            [5 * GB],  # the parent's limit holds
        ),
        (JOB, {"memory.max": 2 * GB, "memory.current": GB, "user.slice/memory.max": "max"}, [GB]),
        # Unused file pages are free.
        (
            V2,
            {"memory.max": 2 * GB, "memory.current": 2 * GB, "memory.stat": f"anon 5\ninactive_file {GB}\nfile 7"},
            [GB],
        ),
        # Version 1, where the group's own folder is not mounted.
        (V1, {"memory/memory.limit_in_bytes": 2 * GB, "memory/memory.usage_in_bytes": GB // 2}, [3 * GB // 2]),
        (V2, {"memory.max": "max", "memory.current": GB}, []),
        (V2, {}, []),
    ],
)
def test_the_limits_of_control_groups(cgroups, lines, files, free):
    assert cgroups(lines, files) == free


@pytest.fixture
def memory(monkeypatch):
    """Sets what the machine has available and what its cgroup leaves, in bytes."""

    def set_memory(available, *left):
        psutil = available and SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=available))
        monkeypatch.setattr(sensors, "psutil", psutil)
        monkeypatch.setattr(resources, "cgroup_free_bytes", lambda: list(left))

    return set_memory


def as_rank(monkeypatch, local_ranks):
    ranks = {"RANK": "0", "WORLD_SIZE": local_ranks, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": local_ranks}
    for name, text in (ranks | {"MASTER_ADDR": "host", "MASTER_PORT": "29400"}).items():
        monkeypatch.setenv(name, text)


@pytest.mark.parametrize(
    ("limits", "ranks", "free"),
    [
        ((16 * GB, 12 * GB, 20 * GB), None, 12 * GB),
        ((8 * GB, 12 * GB), None, 8 * GB),
        ((None, 12 * GB), None, 12 * GB),
        ((None,), None, None),
        ((16 * GB,), "8", 2 * GB),  # local ranks share it
    ],
)
def test_available_memory_is_the_least_of_all_limits(memory, monkeypatch, limits, ranks, free):
    memory(*limits)
    if ranks:
        as_rank(monkeypatch, ranks)
    assert resources.available_bytes() == free


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with limits of open files and shared memory, in bytes; returns (shortage, final soft limit)."""

    def call(workers, soft=1024, hard=1_048_576, shared=10**12, platform="linux"):
        limits = [soft, hard]

        def set_limits(which, wanted):
            assert wanted[1] == hard
            assert hard == resources.resource.RLIM_INFINITY or wanted[0] <= hard
            limits[:] = wanted

        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(resources.resource, "getrlimit", lambda which: tuple(limits))
        monkeypatch.setattr(resources.resource, "setrlimit", set_limits)
        monkeypatch.setattr(resources.os, "listdir", lambda folder: ["0", "1", "2"])
        monkeypatch.setattr(resources.shutil, "disk_usage", lambda folder: SimpleNamespace(free=shared))
        return resources.find_worker_shortage(workers, QUEUED, BATCH, tmp_path), limits[0]

    return call


def test_96_workers_raise_the_soft_limit_of_1024_files(machine):
    assert machine(96) == ("", 3 + 64 + 96 * 10)
    assert machine(16) == ("", 1024)  # enough already
    shortage, limit = machine(96, hard=1024)
    assert limit == 1024
    assert "NUM_WORKERS='96' needs 1027 open files" in shortage
    assert "1024" in shortage


def test_a_mac_is_never_short_of_files_or_shared_memory(machine):
    shortage, limit = machine(20, soft=256, hard=resources.resource.RLIM_INFINITY, shared=0, platform="darwin")
    assert shortage == ""
    assert limit == 267
    assert machine(20, soft=256, hard=256, platform="darwin") == ("", 256)


def test_docker_is_told_the_size_that_16_workers_need(machine, monkeypatch):
    shortage, _ = machine(16, shared=64 * 2**20)
    assert "needs 1850 MB" in shortage
    assert "has 67 MB" in shortage
    assert "--shm-size=2g" in shortage
    assert machine(16, shared=2 * 2**30)[0] == ""
    as_rank(monkeypatch, "2")
    assert "needs 3699 MB" in machine(16, shared=2 * 2**30)[0]


def test_a_limit_that_cannot_be_raised_stays(monkeypatch):
    def refuses(which, wanted):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resources.resource, "getrlimit", lambda which: (256, resources.resource.RLIM_INFINITY))
    monkeypatch.setattr(resources.resource, "setrlimit", refuses)
    assert resources.raise_open_files(1000) == 256
