"""A folder of results for each test."""

import pytest

from bench.plots import frames
from bench.records import results, tables


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(results, "PUBLISHED", tmp_path)
    return tmp_path / "results"


@pytest.fixture
def load(folder):
    return lambda: frames.select_valid(tables.latest(tables.read(folder, pytest.fail)))
