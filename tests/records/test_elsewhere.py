"""Results of other machines: which one a name means, and which are shown below a result."""

import math

import pytest

from bench.records import elsewhere, results
from bench.records.combine import combine, read_stored
from bench.settings import SettingError
from tests.rows import GPU, ROW, processes_of, rate, write

NAMES = ["NVIDIA RTX 3090", "NVIDIA RTX 4090", "Apple M1 Max (CPU)", "Apple M1 Max (32-core GPU)"]
CITED = {"source": "https://x.org/a", "machine": "x"}


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("3090", "NVIDIA RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA RTX 4090"),
        ("apple m1 max (cpu)", "Apple M1 Max (CPU)"),
        ("nobody's", None),
    ],
)
def test_a_machine_is_found_as_people_type_it(typed, found):
    assert elsewhere.find_name("B", typed, NAMES) == found


def test_a_name_of_several_machines_is_one_line():
    with pytest.raises(SettingError, match="B=") as error:
        elsewhere.find_name("B", "M1 Max", NAMES)
    assert "Apple M1 Max (CPU); " in str(error.value)
    assert "\n" not in str(error.value)


def test_a_rate_follows_from_seconds():
    row = {"throughput": math.nan, "items": 600, "seconds": 6.0, "step_seconds_median": None, "batch_size": "4"}
    assert elsewhere.rate_of(row) == 100
    assert elsewhere.rate_of(row | {"items": math.nan, "step_seconds_median": 0.5}) == 8


def describe(folder, *others, **changes):
    """Describe what is elsewhere for a GPU's row of 100 images/s, which is stored, too."""
    mine = processes_of(ROW | GPU | changes)
    write(folder, mine, "mine")
    for number, other in enumerate(others):
        write(folder, [GPU | {"machine": f"m{number}"} | other], f"m{number}")
    return elsewhere.describe_elsewhere(combine(mine)[0], read_stored(folder))


def test_the_same_chip_comes_first_then_the_fastest_of_each_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "PUBLISHED", tmp_path / "none")
    same = rate(40) | CITED | {"device_name": "GeForce Example GPU (Laptop)", "framework": "tensorflow"}
    others = [rate(900) | CITED | {"device_name": name} for name in ("Slow", "Fast")]
    others[0] |= rate(50)
    text = describe(tmp_path, *others, same, rate(200) | {"device_name": "Own", "processes": 3}, {"device_name": "2"})
    names = ["Example GPU (Laptop) 40 images/s (tensorflow, published; yours is 2.5x)", "Fast 900", "m3 200 images/s"]
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "3 processes" in text
    assert "Slow" not in text


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 64},
        {"phase": "forward"},
        {"precision": "bfloat16"},
        {"device": "cpu"},
        {"flags": "contended"},
        {"flags": "implausible"},
        {"status": "interrupted"},
        {"machine": GPU["machine"]},  # this computer
        CITED | {"status": "cpu_time"},
    ],
)
def test_what_is_of_other_work_or_doubtful_or_of_this_computer_is_left_out(tmp_path, monkeypatch, other):
    monkeypatch.setattr(results, "PUBLISHED", tmp_path / "none")
    assert describe(tmp_path, other) == ""
    assert describe(tmp_path, {}) != ""


def test_a_disturbed_result_has_no_ratio(tmp_path):
    assert "yours" in describe(tmp_path, {}, flags="drift")
    assert "yours" not in describe(tmp_path, {}, flags="drift contended")
