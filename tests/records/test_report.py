"""What a run prints of a machine that has become slower, and of several devices."""

import pytest

from bench.records import columns, report

ROW = dict.fromkeys(columns.COLUMNS) | {"status": "ok", "device": "cpu", "framework": "torch", "phase": "inference"}
ROW |= {"workload": "image", "model": "resnet50", "scope": "device", "unit": "images/s", "machine": "m", "cpu_id": ""}


@pytest.mark.parametrize(
    ("seconds", "cpu_id", "warns"), [(0.001, "", True), (0.00135, "", False), (0.001, "another chip", False)]
)
def test_a_machine_that_was_faster_before_is_reported(seconds, cpu_id, warns):
    before = dict.fromkeys(columns.COLUMNS, "") | {"device": "cpu", "framework": "torch"}
    stored = [before | {"canary_seconds": str(each), "cpu_id": cpu_id} for each in (seconds, 2 * seconds)]
    now = ROW | {"canary_seconds": 0.0014, "device_name": "", "python": ""}
    assert ("1.40 times" in report.describe_slowdown([now], stored)) == warns


def test_scaling_is_the_rate_per_device_over_that_of_the_fewest():
    rates = {2: (18.0, 17.0, 19.0), 1: (10.0, 9.5, 10.5)}
    names = ("throughput", "throughput_low", "throughput_high")
    rows = [ROW | {"world_size": size} | dict(zip(names, of_size, strict=True)) for size, of_size in rates.items()]
    text = report.describe_scaling(rows)
    assert "efficiency 0.900 (0.810 to 1.000)" in text
