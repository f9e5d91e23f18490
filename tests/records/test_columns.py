"""A row's work and setup are said in one way."""

import pytest

from bench.records import columns

WORK = "resnet50, end_to_end, compiled, batch 16"


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"workload": "image", "model": "resnet50", "scope": "end_to_end", "compile": 1, "batch_size": 16}, WORK),
        ({"workload": "mlp", "model": "mlp-5x1024", "scope": "device", "compile": "0"}, "mlp-5x1024"),
        ({"power_source": "ac", "low_power_mode": 0}, ""),
        ({"power_source": "battery", "num_workers": 4, "num_threads": 1}, "on battery, 4 workers, 1 thread"),
    ],
)
def test_unusual_cells_are_said_in_words(cells, words):
    assert ", ".join(filter(None, [columns.describe_work(cells), columns.describe_setup(cells)])) == words


def test_a_number_has_four_digits_and_an_unknown_one_is_blank():
    shown = [columns.format_number(value) for value in (0.5214, 20153.2, 1e-05, None, float("nan"), "")]
    assert shown == ["0.5214", "20150", "1e-05", "", "", ""]
