"""A rate is compared with what its chip can do: by specification, and as measured on the same machine."""

from bench.records import peaks
from tests.rows import PEAK, ROW, combine

LAPTOP = {"device_name": "NVIDIA GeForce RTX 4060 Laptop GPU", "rated_bandwidth": 400.0}  # not in the file


def row_of(**changes):
    return ROW | PEAK | {"precision": "float16", "run_id": str(changes)} | changes


def test_shares_are_of_the_best_of_the_same_machine_and_precision():
    old, new = {"machine": "epyc-23"}, {"machine": "epyc-25"}
    found = [row_of(tflops=1.0, **old), row_of(tflops=3.0, **new), row_of(tflops=4.0, framework="jax", **new)]
    found += [row_of(workload="bandwidth", model=name, throughput=rate, **new) for name, rate in (("a", 20), ("b", 40))]
    found += [row_of(tflops=900.0, flags="contended", **new), row_of(tflops=800.0, status="interrupted", **new)]
    found += [row_of(tflops=9.0, precision="float32", **new)]
    row = ROW | {"precision": "mixed_float16", "tflops": 2.0, "bandwidth": 10.0}
    chips = old, new, {"machine": "ryzen"}, new | {"device": "mps"}, new | {"tflops": None, "bandwidth": None}
    rows = [row | chip | {"run_id": str(i)} for i, chip in enumerate([*chips, new | {"precision": "bfloat16"}])]
    shares = combine([*found, *rows])[-len(rows) :]
    assert [each["of_peak"] for each in shares] == [2.0, 0.5, None, None, None, None]
    assert [each["of_bandwidth"] for each in shares] == [None, 0.25, None, None, None, 0.25]


def test_a_share_is_of_what_the_chip_is_rated_at_too():
    row = ROW | {"device": "cuda", "device_name": "NVIDIA H200", "tflops": 33.5, "bandwidth": 2400.0, "world_size": 1}
    assert [peaks.rated_share(row, name) for name in ("tflops", "bandwidth")] == [0.5, 0.5]
    assert peaks.rated_share(row | {"measured_precision": "tf32", "tflops": 494.5}, "tflops") == 1
    laptop = row | LAPTOP | {"bandwidth": 200.0}
    assert peaks.rated_share(laptop, "bandwidth") == 0.5
    for unknown in (laptop, row | {"device": "cpu"}):
        assert peaks.rated_share(unknown, "tflops") is None
