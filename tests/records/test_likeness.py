"""Which results are of the same work, and what is shown below a result."""

import pytest

from bench.records import likeness, results, tables
from bench.records.likeness import work_key
from tests.rows import GPU, LLM, MATMUL, PEAK, ROW, combine, latest_of, processes_of, write

SHORT = {"batch_size": 64, "precision": "mixed_bfloat16", "compile": 1}


@pytest.mark.parametrize(
    ("cells", "others", "is_same"),
    [
        (SHORT, {"precision": "float16", "compile": "reduce-overhead", "framework": "jax", "optimizer": "adam"}, True),
        (SHORT, {"image_size": ""}, True),  # a source that does not state it
        (SHORT, {"image_size": "32"}, False),
        (SHORT, {"batch_size": 256}, False),
        (SHORT, {"compile": 0}, False),
        (SHORT, {"precision": "float32"}, False),
        ({"measured_precision": "tf32"}, {"precision": "tf32"}, True),
        ({}, {"measured_precision": "tf32"}, False),
        (LLM | {"phase": "decode", "depth": ""}, {"depth": "0", "new_tokens": "128"}, False),
        # A peak has no size, but a precision.
        (PEAK, {"matrix_size": "4096x4096x4096", "batch_size": 8}, True),
        (PEAK, MATMUL, False),
        (PEAK | {"precision": "float16"}, {"precision": "bfloat16"}, False),
    ],
)
def test_rows_are_of_the_same_work(cells, others, is_same):
    assert (work_key(ROW | cells) == work_key(ROW | cells | others)) == is_same


CITED = {"source": "https://x.org/a", "machine": "x"}


@pytest.mark.parametrize("device", [{}, GPU])
@pytest.mark.parametrize("differing", ["cpu_id", "device_name"])
def test_the_same_chip_is_an_equal_cpu_id_or_name_of_a_gpu(device, differing):
    mine, other = ROW | device, ROW | device | {"machine": "other", "run_id": "x", differing: "Another 26"}
    text = likeness.describe_elsewhere(combine([mine])[0], latest_of(mine, other))
    assert ("on the same chip" in text) == (differing != ("device_name" if device else "cpu_id"))


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 64},
        {"device": "cpu"},
        {"flags": "contended"},
        {"status": "interrupted"},
        {"machine": GPU["machine"]},  # this computer
        CITED | {"status": "cpu_time"},
    ],
)
def test_what_is_of_other_work_or_doubtful_or_of_this_computer_is_left_out(tmp_path, monkeypatch, other):
    monkeypatch.setattr(results, "PUBLISHED", tmp_path / "none")
    mine = processes_of(ROW | GPU)  # is stored, too
    write(tmp_path, mine, "mine")
    for cells in (other, {}):
        write(tmp_path, [GPU | {"machine": "other"} | cells], "other")
        text = likeness.describe_elsewhere(combine(mine)[0], tables.latest(tables.read(tmp_path)))
        assert (text == "") == bool(cells)
