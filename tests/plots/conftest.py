"""A folder of results for each test, and the end of its figures."""

import pytest
from matplotlib import pyplot as plt

from bench.plots import select


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "results").mkdir()
    yield tmp_path / "results"
    plt.close("all")


@pytest.fixture
def load(folder):
    return lambda: select.load(folder, pytest.fail)
