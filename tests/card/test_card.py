"""PyTorch's CUDA build on cards made of software: cases.py, and a run with its own processes and meters."""

import csv
import subprocess
import sys

import pytest

from tests.card import machines

pytestmark = pytest.mark.skipif(bool(machines.explain_missing()), reason=machines.explain_missing())
IMAGES = {"RUNS": "1", "MODEL": "squeezenet1_1", "IMAGE_SIZE": "64", "BATCH_SIZE": "2", "MAX_SECONDS": "2.5"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("card")


def run(folder, visible, *command, **settings):
    """Run Python on two cards: the second one is the first that CUDA may use."""
    environ = machines.environ(folder, CUDA_VISIBLE_DEVICES=visible, **settings)
    done = subprocess.run([sys.executable, *command], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_that_one_process_can_show(folder):
    run(folder, "1,0", "-m", "tests.card.card", "tests/card/cases.py")


def test_images_are_measured_with_the_meters_of_the_card_that_runs(folder):
    run(folder, "GPU-1", "image_benchmark.py", NUM_WORKERS="1", **IMAGES)
    with open(folder / "results" / "nvidia-geforce-rtx-4090.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["scope"], row["status"]) for row in rows] == [("device", "ok"), ("end_to_end", "ok"), ("input", "ok")]
    for row in rows:
        assert (row["driver"], row["temperature_c"], row["throttle_reasons"]) == ("580.95.05", "62", "sw_power_cap")
        assert (row["power_limit_watts"], float(row["rated_bandwidth"])) == ("450", 1008.1)
        assert row["scope"] == "input" or float(row["power_watts"]) == pytest.approx(61, rel=0.01)
        assert float(row["peak_memory_bytes"]) > 0
