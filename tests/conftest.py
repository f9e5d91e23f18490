"""No test sees the settings of whoever runs it, and none writes into results/."""

import os

import pytest

from bench.run import ALLOCATOR_VARIABLES
from bench.settings import known_names


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    for name in [*known_names(), *ALLOCATOR_VARIABLES, "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "results"))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
