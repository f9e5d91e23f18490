"""Operators: what they count, their operands, and that a wrong result is refused."""

import functools

import numpy as np
import pytest

from bench.frameworks.pytorch import on_torch
from bench.timing import MeasurementError
from bench.workloads import operators
from tests.frameworks.sessions import Opener, measure_and_check

CONVOLUTION = functools.partial(
    operators.operator, "conv3x3", ((1, 2, 8, 8), (2, 2, 3, 3)), operators.sample_convolution
)
BANDWIDTHS = [functools.partial(operators.bandwidth, *item) for item in operators.BANDWIDTHS.items()]


def test_operands_rotate_in_bounded_memory(monkeypatch):
    sets = list(operators.matmul((64, 32, 16)).make_batches(1, 0))
    assert len(sets) == operators.MAX_SETS
    assert [array.shape for array in sets[0]] == [(64, 16), (16, 32)]
    assert not np.array_equal(sets[0][0], sets[1][0])
    assert 0.9 < np.std(sets[0][0]) < 1.1
    monkeypatch.setattr(operators, "CACHE_BYTES", 2**22)
    large = operators.matmul((512, 512, 512)).make_batches(1, 0)
    assert sum(array.astype(np.float16).nbytes for arrays in large for array in arrays) == 2**22


# Other precisions, and what is measured, are in tests/frameworks/test_contract.py.
@pytest.mark.parametrize(
    ("build", "precision", "factor"),
    [
        (lambda: operators.matmul((32, 48, 40)), "float32", 1.01),
        (lambda: operators.convolution_1x1((32, 48, 40)), "float32", 1.01),
        (CONVOLUTION, "float32", 1.01),
        *((build, "float32", 1.01) for build in BANDWIDTHS),
        (lambda: operators.matmul((32, 48, 40), "int8"), "int8", 1.01),
        (lambda: operators.matmul((32, 48, 64), "float8_e4m3"), "float8_e4m3", 1.2),
    ],
)
def test_a_wrong_result_of_an_operator_is_refused(monkeypatch, build, precision, factor):
    for name, value in (("COPY_VALUES", 2**16), ("CACHE_BYTES", 1)):  # few and small operands
        monkeypatch.setattr(operators, name, value)
    workload, open_session = build(), functools.partial(Opener("torch").operator, USE_GPU="0")
    session = open_session(workload, precision)
    measure_and_check(session)
    assert np.isfinite(session.read())
    right = on_torch.OPERATORS[workload.model]
    monkeypatch.setitem(on_torch.OPERATORS, workload.model, lambda *operands: right(*operands) * factor)
    with pytest.raises(MeasurementError, match="the output differs") as error:
        measure_and_check(open_session(workload, precision))
    assert error.value.status == "wrong_output"
    assert precision != "float32" or "float64's by 1.0e-02" in str(error.value)
