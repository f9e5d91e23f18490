"""What a run prints: shares of the peak, a machine that has become slower, efficiency of several devices."""

import pytest

from bench.records import columns, report

ROW = dict.fromkeys(columns.COLUMNS) | {
    **{"status": "ok", "flags": "", "note": "", "workload": "image", "model": "resnet50", "phase": "inference"},
    **{"scope": "device", "framework": "torch", "framework_version": "2.15.0+cu132", "device": "cpu", "machine": "m"},
    **{"device_name": "AMD EPYC with a rather long name", "precision": "float32", "batch_size": 16, "num_threads": 2},
    **{"image_size": 224, "memory_format": "channels_first", "unit": "images/s", "first_step_seconds": 1.4},
    **{"measured_precision": "float32", "cpu_id": "", "python": "3.11"},
}
MEASURED = {"throughput": 13.5, "throughput_low": 12.6, "throughput_high": 13.7, "windows": 9, "process_rates": "13.5"}


def test_the_share_of_the_measured_peak_is_named():
    peak = dict.fromkeys(columns.COLUMNS, "") | {"status": "ok", "workload": "matmul", "model": "matmul-peak"}
    peak |= {name: ROW[name] for name in ("machine", "device", "device_name", "precision")} | {"tflops": "0.5"}
    text = report.describe([ROW | MEASURED | {"tflops": 0.1}], [peak])
    assert "20 % of this machine's measured peak" in text


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
