"""Free memory and shared memory, of machines and containers that are not here."""

import sys
from types import SimpleNamespace

import pytest

from bench.host import resources, sensors

GB = 10**9


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"max": 2 * GB, "current": GB}, [GB]),
        ({"max": 2 * GB, "current": 2 * GB, "stat": f"anon 5\ninactive_file {GB}\nfile 7"}, [GB]),  # unused file pages
        ({"max": "max", "current": GB}, []),
        ({}, []),
    ],
)
def test_the_memory_limit_of_a_container(tmp_path, files, free):
    for name, text in files.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    assert resources.container_free_bytes(tmp_path) == free


def as_rank(monkeypatch, local_ranks):
    ranks = {"RANK": "0", "WORLD_SIZE": local_ranks, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": local_ranks}
    for name, text in (ranks | {"MASTER_ADDR": "host", "MASTER_PORT": "29400"}).items():
        monkeypatch.setenv(name, text)


@pytest.mark.parametrize(
    ("available", "left", "ranks", "free"),
    [
        (16 * GB, [12 * GB, 20 * GB], "1", 12 * GB),
        (8 * GB, [12 * GB], "1", 8 * GB),
        (16 * GB, [], "8", 2 * GB),  # local ranks share it
    ],
)
def test_available_memory_is_the_least_of_all_limits(monkeypatch, available, left, ranks, free):
    monkeypatch.setattr(sensors.psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    monkeypatch.setattr(resources, "container_free_bytes", lambda: left)
    as_rank(monkeypatch, ranks)
    assert resources.available_bytes() == free


def test_docker_is_told_the_size_that_16_workers_need(monkeypatch, tmp_path):
    batch = 64 * 3 * 224 * 224 * 4

    def shortage(free):
        monkeypatch.setattr(resources.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
        return resources.find_worker_shortage(16, 3, batch, tmp_path)

    monkeypatch.setattr(sys, "platform", "linux")
    said = shortage(64 * 2**20)
    assert "needs 1850 MB" in said
    assert "has 67 MB" in said
    assert "--shm-size=2g" in said
    assert shortage(2 * 2**30) == ""
    as_rank(monkeypatch, "2")
    assert "needs 3699 MB" in shortage(2 * 2**30)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert shortage(0) == ""
