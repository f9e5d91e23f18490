"""A rate is compared with what its chip can do: by specification, and as measured on the same chip."""

import pytest

from bench.host.environment import read_host
from bench.records.rows import complete_row

A100 = {"device_name": "NVIDIA A100-SXM4-40GB"}
LAPTOP = {"device_name": "NVIDIA GeForce RTX 4060 Laptop GPU", "rated_bandwidth": 400.0}  # not in the file
M1 = {"device": "mps", "device_name": "Apple M1", "gpu_cores": 8, "precision": "float16"}
M4_MAX = {"device": "mps", "device_name": "Apple M4 Max", "gpu_cores": 40, "precision": "float32"}


@pytest.mark.parametrize(
    ("cells", "implausible"),
    [
        ({"precision": "mixed_float16", "tflops": 1300.0}, True),
        ({"precision": "mixed_float16", "tflops": 1300.0, "world_size": 2}, False),
        (M4_MAX | {"tflops": 25.0}, True),
        (M4_MAX | {"tflops": 25.0, "measured_precision": "tf32"}, False),  # newer chips compute float32 with 11 bits
        # The direct convolution has 5.06 times the multiplications of the largest Winograd's.
        ({"workload": "image", "precision": "float32", "tflops": 6.5 * 67}, False),
        ({"workload": "convolution", "precision": "float32", "tflops": 6.7 * 67}, True),
        ({"workload": "image", "tflops": 1300.0}, True),  # on tensor cores
        (M1 | {"workload": "image", "tflops": 6.7 * 2.617}, True),
        (A100 | {"bandwidth": 1.4 * 1555}, True),
        (A100 | {"workload": "bandwidth", "throughput": 1.4 * 1555}, True),
        (LAPTOP | {"bandwidth": 600.0}, True),
        ({"device": "cpu", "device_name": "AMD EPYC", "precision": "float32", "tflops": 1e6}, False),
    ],
)
def test_more_than_a_chip_can_do_is_implausible(cells, implausible):
    row = {"device": "cuda", "device_name": "NVIDIA H200", "gpu_cores": None, "precision": "bfloat16"}
    row = complete_row(read_host("m"), row | {"flags": "drift"} | cells)
    assert row["flags"] == "drift" + " implausible" * implausible
