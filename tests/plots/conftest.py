"""A folder of results for each test, and the end of its figures."""

import pytest
from matplotlib import pyplot as plt

from bench.plots import frames
from bench.records import results, tables


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(results, "PUBLISHED", tmp_path)
    yield tmp_path / "results"
    plt.close("all")


@pytest.fixture
def load(folder):
    return lambda: frames.select_valid(tables.read(folder, pytest.fail))
