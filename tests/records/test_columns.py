"""Every column says what it is for, and a row's work is said in one way."""

import pytest

from bench.host.environment import GLIBC_KEEPS
from bench.records import columns
from bench.records.columns import COLUMNS, describe_change, describe_setup, describe_work

IMAGE = {"workload": "image", "framework": "torch", "model": "resnet50", "phase": "training", "scope": "end_to_end"}
IMAGE |= {"precision": "float32", "compile": 1, "memory_format": "channels_last", "batch_size": 16, "image_size": 224}
MLP = {"workload": "mlp", "model": "mlp-5x1024", "scope": "device", "compile": "0", "image_size": "32"}
KEEPS = {"allocator": " ".join(f"{name}={value}" for name, value in GLIBC_KEEPS.items())}


def test_every_column_has_a_role_a_kind_and_words_if_it_describes_work_or_setup():
    for name, column in COLUMNS.items():
        assert column.role in ("identity", "version", "work", "setup", "result"), name
        assert column.kind in ("text", "number", "positive", "meter"), name
        assert (column.words is not None) == (column.role in ("work", "setup")), name


@pytest.mark.parametrize(
    ("describe", "row", "words"),
    [
        (describe_work, IMAGE, "resnet50, training, end_to_end, float32, compiled, channels_last, batch 16, 224 px"),
        (describe_work, MLP | {"data": "synthetic"}, "mlp-5x1024, synthetic images"),
        (
            describe_setup,
            {"power_source": "battery", "num_workers": 4, "num_threads": 1},
            "on battery, 4 workers, 1 thread",
        ),
        (describe_setup, {"power_source": "ac", "low_power_mode": 0}, ""),
        (describe_setup, KEEPS, "allocator keeps memory"),
        (describe_setup, {"allocator": "LD_PRELOAD=/usr/lib/libjemalloc.so.2"}, "libjemalloc.so.2"),
    ],
)
def test_unusual_cells_are_said_in_words(describe, row, words):
    assert describe(row) == words


def test_a_change_is_said_in_words():
    assert describe_change({}, KEEPS) == "allocator keeps memory"
    assert describe_change(KEEPS, {}) == "allocator default"


def test_a_number_has_four_digits_and_an_unknown_one_is_blank():
    shown = [columns.format_number(value) for value in (0.5214, 1695.96, 20153.2, 1e-05, None, float("nan"), "")]
    assert shown == ["0.5214", "1696", "20150", "1e-05", "", "", ""]
