"""Which results are of the same work, and what is shown below a result."""

import pytest

from bench.records import likeness, results, tables
from bench.records.likeness import describe_how, work_of
from tests.rows import GPU, LLM, MATMUL, PEAK, ROW, processes_of, rate, write

SHORT = {"batch_size": 64, "precision": "mixed_bfloat16", "compile": 1}
UNKNOWN = LLM | {"phase": "decode", "depth": ""}


@pytest.mark.parametrize(
    ("cells", "others", "is_same"),
    [
        (SHORT, {"precision": "float16", "compile": "reduce-overhead", "framework": "jax", "optimizer": "adam"}, True),
        (SHORT, {"image_size": ""}, True),  # a source that does not state it
        (SHORT, {"image_size": "32"}, False),
        (SHORT, {"batch_size": 256}, False),
        (SHORT, {"compile": 0}, False),
        (SHORT, {"precision": "float32"}, False),
        (SHORT, {"scope": "end_to_end"}, False),
        (SHORT, {"world_size": 2}, False),
        ({"measured_precision": "tf32"}, {"precision": "tf32"}, True),
        ({}, {"measured_precision": "tf32"}, False),
        (UNKNOWN, {"depth": "0", "new_tokens": "128"}, False),
        (UNKNOWN, {"framework": "mlx"}, True),
        # A peak has no size, but a precision.
        (PEAK, {"matrix_size": "4096x4096x4096", "batch_size": 8}, True),
        (PEAK, MATMUL, False),
        (PEAK | {"precision": "float16"}, {"precision": "bfloat16"}, False),
    ],
)
def test_rows_are_of_the_same_work(cells, others, is_same):
    assert (work_of(ROW | cells) == work_of(ROW | cells | others)) == is_same


def test_what_differs_is_in_words():
    assert describe_how(ROW | {"precision": "bfloat16", "memory_format": "channels_last"}).endswith("16, channels_last")
    assert describe_how(ROW | {"precision": "float16", "framework": "jax"}) == "jax, float16"


CITED = {"source": "https://x.org/a", "machine": "x"}


def describe(folder, *others, **changes):
    """Describe what is elsewhere for a GPU's row of 100 images/s, which is stored, too."""
    mine = processes_of(ROW | GPU | changes)
    write(folder, mine, "mine")
    for number, other in enumerate(others):
        write(folder, [GPU | {"machine": f"m{number}"} | other], f"m{number}")
    return likeness.describe_elsewhere(tables.combine_rows(mine)[0], tables.read(folder))


def test_the_same_chip_comes_first_then_the_fastest_of_each_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "PUBLISHED", tmp_path / "none")
    same = rate(40) | CITED | {"device_name": "GeForce Example GPU (Laptop)", "framework": "tensorflow"}
    others = [rate(900) | CITED | {"device_name": name} for name in ("Slow", "Fast")]
    others[0] |= rate(50)
    text = describe(tmp_path, *others, same, rate(200) | {"device_name": "Own", "processes": 3}, {"device_name": "2"})
    names = ["Example GPU (Laptop) 40 images/s (tensorflow, published; yours is 2.5x)", "Fast 900", "m3 200 images/s"]
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "processes: 3" in text
    assert "Slow" not in text


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 64},
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
