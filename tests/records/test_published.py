"""Results of this program next to those that others published of the same work."""

import math
from pathlib import Path

import pytest

from bench.plots import frames
from bench.records import published
from bench.settings import SettingError
from tests.rows import GPU, PEAK, rate, write


@pytest.fixture(scope="module")
def machines():
    """Return the rows of results/published.csv by machine."""
    return published.group_published(frames.load(Path("results"), pytest.fail).lines)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("3090", ["NVIDIA RTX 3090"]),
        ("NVIDIA GeForce RTX 4090", ["NVIDIA RTX 4090"]),
        ("Apple M1 (CPU)", ["Apple M1 (CPU)"]),
        ("nobody's", []),
    ],
)
def test_a_machine_is_found_as_people_type_it(machines, typed, found):
    assert published.find_names(typed, machines) == found


def test_a_name_of_several_machines_is_one_line(machines):
    with pytest.raises(SettingError, match="B=") as error:
        published.choose_name("M1 Max", machines)
    assert "Apple M1 Max (CPU); " in str(error.value)
    assert "\n" not in str(error.value)


def test_results_are_next_to_published_ones_of_the_same_work(tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "PUBLISHED", tmp_path)
    cited = {"source": "https://x.org/a", "device_name": "Other", "machine": "other", "framework": "tensorflow"}
    others = [rate(50) | cited, rate(7) | cited | {"batch_size": 64}, rate(9) | cited | {"phase": "forward"}]
    write(tmp_path, others, "published")
    write(tmp_path, [rate(100) | GPU, PEAK], "a")
    lines = frames.load(tmp_path, pytest.fail).lines
    both = (lines.loc[lines["published"] == which].to_dict("records") for which in (False, True))
    text = "\n".join(published.describe_both(*both))
    assert "2x (1.98 to 2.02), 100 here, 50 there (images/s)" in text
    assert "https://x.org/a" in text
    assert "2 (n = 1)" in text


def test_a_rate_follows_from_seconds():
    row = {"value": math.nan, "items": 600, "seconds": 6.0, "step_seconds_median": math.nan, "batch_size": "4"}
    assert published.fill_rate(row)["value"] == 100
    assert published.fill_rate(row | {"items": math.nan, "step_seconds_median": 0.5})["value"] == 8
