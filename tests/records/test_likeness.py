"""Which figures are of the same work."""

import pytest

from bench.plots import frames
from bench.records.likeness import describe_how, name_work, work_of
from tests.rows import MATMUL, PEAK, ROW, as_text

TRAINING = {"batch_size": 64, "precision": "mixed_bfloat16", "compile": 1}


def row(**cells):
    return as_text(ROW | cells)


@pytest.fixture(scope="module")
def ancestors():
    """ResNet-50's training on an RTX 3090, as its source states it: 957 images/s."""
    lines = frames.load("results", print).lines
    found = lines[(lines["device_name"] == "NVIDIA RTX 3090") & (lines["value"].round() == 957)]
    assert len(found) == 1
    return found.to_dict("records")[0]


def test_the_ancestors_figure_is_next_to_64_images_compiled(ancestors):
    assert work_of(ancestors) == work_of(row(**TRAINING))
    assert work_of(ancestors) == work_of(row(**TRAINING | {"precision": "mixed_float16", "compile": "reduce-overhead"}))


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 256},
        {"compile": 0},
        {"precision": "float32"},
        {"phase": "inference"},
        {"scope": "end_to_end"},
        {"model": "resnet18"},
        {"image_size": 128},
        {"world_size": 2},
    ],
)
def test_and_next_to_nothing_else(ancestors, other):
    assert work_of(ancestors) != work_of(row(**TRAINING | other))


def test_what_differs_is_in_words():
    a, b = row(precision="bfloat16", memory_format="channels_last"), row(precision="float16", framework="jax")
    assert work_of(a) == work_of(b)
    assert "channels_last" in describe_how(a)
    assert "float16" in describe_how(b)
    assert "jax" in describe_how(b)


def test_float32_that_ran_as_tf32_is_tf32():
    assert work_of(row(measured_precision="tf32")) == work_of(row(precision="tf32"))
    assert work_of(row(measured_precision="tf32")) != work_of(row())


def test_unknown_lengths_are_next_to_unknown_ones_only():
    unknown = row(workload="llm", model="llama-3.2-1b", phase="decode", depth="")
    assert work_of(unknown) != work_of(unknown | {"depth": "0", "new_tokens": "128"})
    assert work_of(unknown) == work_of(unknown | {"framework": "mlx"})
    assert "not stated" in name_work(unknown)


def test_a_peak_has_no_size_but_a_precision():
    assert work_of(row(**PEAK)) == work_of(row(**PEAK | {"matrix_size": "4096x4096x4096", "batch_size": 8}))
    assert work_of(row(**PEAK)) != work_of(row(**MATMUL))
    assert work_of(row(**PEAK | {"precision": "float16"})) != work_of(row(**PEAK | {"precision": "bfloat16"}))
