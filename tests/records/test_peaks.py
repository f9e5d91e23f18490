"""A rate is compared with what its chip can do: by specification, and as measured on the same chip."""

from bench.records import peaks
from tests.rows import PEAK, ROW, latest_of

LAPTOP = {"device_name": "NVIDIA GeForce RTX 4060 Laptop GPU", "rated_bandwidth": 400.0}  # not in the file


def row_of(**changes):
    return ROW | PEAK | {"precision": "float16", "run_id": str(changes)} | changes


def test_shares_are_of_the_best_of_the_same_machine_and_precision():
    old, new = {"machine": "epyc-23"}, {"machine": "epyc-25"}
    matmuls = [row_of(tflops=1.0, **old), row_of(tflops=3.0, **new), row_of(tflops=4.0, framework="jax", **new)]
    copies = [
        row_of(workload="bandwidth", model=name, throughput=rate, **new) for name, rate in (("a", 20.0), ("b", 40.0))
    ]
    unusable = [row_of(tflops=900.0, flags="contended", **new), row_of(tflops=800.0, status="interrupted", **new)]
    best = peaks.measured_peaks(latest_of(*matmuls, row_of(tflops=9.0, precision="float32", **new), *copies, *unusable))
    row = ROW | {"precision": "mixed_float16", "tflops": 2.0, "bandwidth": 10.0}
    chips = old, new, {"machine": "ryzen"}, new | {"device": "mps"}, new | {"tflops": None, "bandwidth": None}
    assert [peaks.fraction_of(best, row | chip, "tflops") for chip in chips] == [2.0, 0.5, None, None, None]
    assert [peaks.fraction_of(best, row | chip, "bandwidth") for chip in chips] == [None, 0.25, None, None, None]
    assert peaks.fraction_of(best, row | new | {"precision": "bfloat16"}, "tflops") is None


def test_a_share_is_of_what_the_chip_is_rated_at_too():
    row = ROW | {"device": "cuda", "device_name": "NVIDIA H200", "tflops": 33.5, "bandwidth": 2400.0, "world_size": 1}
    shares = [peaks.fraction_of(peaks.rated_peaks(row), row, name) for name in ("tflops", "bandwidth")]
    assert shares == [0.5, 0.5]
    tf32 = row | {"measured_precision": "tf32", "tflops": 494.5}
    assert peaks.fraction_of(peaks.rated_peaks(tf32), tf32, "tflops") == 1
    laptop = row | LAPTOP | {"bandwidth": 200.0}
    assert peaks.fraction_of(peaks.rated_peaks(laptop), laptop, "bandwidth") == 0.5
    for unknown in (laptop, row | {"device": "cpu"}):
        assert peaks.fraction_of(peaks.rated_peaks(unknown), unknown, "tflops") is None
