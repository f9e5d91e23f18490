"""Free memory and shared memory, of machines and containers that are not here."""

import sys
from types import SimpleNamespace

import pytest

from bench.host import resources
from bench.host.ranks import Ranks

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


def test_available_memory_is_the_least_of_all_limits_and_ranks_share_it(monkeypatch):
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GB))
    found = []
    for left, count in (([12 * GB, 20 * GB], 1), ([], 1), ([], 8)):
        monkeypatch.setattr(resources, "container_free_bytes", lambda left=left: left)
        monkeypatch.setattr(resources, "read_ranks", lambda count=count: Ranks(0, count, 0, count))
        found.append(resources.available_bytes())
    assert found == [12 * GB, 16 * GB, 2 * GB]


def test_workers_that_need_more_shared_memory_than_docker_gives_are_told_how_much(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    said = []
    for free in (2**26, 2**31):
        monkeypatch.setattr(resources.shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        said.append(resources.find_worker_shortage(16, 3, 64 * 3 * 224 * 224 * 4, tmp_path))
    assert "--shm-size=2g" in said[0]
    assert said[1] == ""
