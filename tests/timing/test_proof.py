"""Wrong work is refused before it is timed; right work is not."""

from types import SimpleNamespace

import numpy as np
import pytest

from bench.timing import MeasurementError, proof

RANDOM = np.random.default_rng(0)
OUTPUT = RANDOM.standard_normal((2, 1000))


def test_no_limit_of_an_operator_exceeds_30_percent():
    with pytest.raises(MeasurementError):
        proof.check_samples(OUTPUT * 1.5, OUTPUT, "lower")
    with pytest.raises(MeasurementError):
        proof.refuse_other_parameters(8, 7)


def test_the_limit_of_a_model_follows_from_its_sensitivity():
    context = object.__new__(proof.Proof)
    context.fixed_limit = 0.3
    cases = ((0.01, 0.01, 0.04), (0.01, 0.3, 0.3), (0.0001, 0.01, 0.01), (0.4, 0.01, 0.9), (0.5, 0.01, None))
    for rounding, context.least_limit, limit in (*cases, (0, 0.01, 0.3)):
        context.roundings = {"output": rounding}
        assert context.limit_of("output") == limit


def test_a_gradient_that_rounding_explains_is_not_zero_all_the_same():
    context = object.__new__(proof.Proof)
    context.fixed_limit, context.least_limit = 0.3, 0.01
    context.roundings = {proof.OUTPUT: 0.01, proof.LAST: 0.01, proof.FIRST: 0.6}
    expected = dict.fromkeys(context.roundings, OUTPUT)
    context.compare(expected | {proof.FIRST: -OUTPUT}, expected, "differs")
    for wrong, words in ((0, "first layer is all zero"), (-1, "first layer differs")):
        context.roundings[proof.FIRST] = 0.6 if wrong == 0 else 0.1
        with pytest.raises(MeasurementError, match=words):
            context.compare(expected | {proof.FIRST: wrong * OUTPUT}, expected, "differs")
    # A gradient that is nothing but rounding may be anything.
    context.roundings[proof.FIRST] = 1.4
    context.compare(expected | {proof.FIRST: 0 * OUTPUT}, expected, "differs")
    context.roundings[proof.FIRST] = 0
    context.compare(expected | {proof.FIRST: OUTPUT}, expected | {proof.FIRST: 1e-9 * OUTPUT}, "differs")


def test_of_inner_gradients_the_norm_is_compared():
    context = object.__new__(proof.Proof)
    context.fixed_limit, context.least_limit, context.roundings = 0.3, 0.01, {}
    inner = {proof.OUTPUT: OUTPUT, "gradient of layer 3": OUTPUT}
    context.compare(inner | {"gradient of layer 3": OUTPUT[::-1]}, inner, "differs")
    with pytest.raises(MeasurementError, match=r"layer 3 differs.* 1\.5 times"):
        context.compare(inner | {"gradient of layer 3": 1.5 * OUTPUT}, inner, "differs")


def test_arrays_are_disturbed_by_at_most_the_spread():
    weights, ids = OUTPUT.astype(np.float32), np.arange(4)
    proof.disturb([weights, ids], 2**-8)
    assert 2**-9 < np.abs(weights / OUTPUT - 1).max() <= 1.001 * 2**-8
    assert ids.tolist() == [0, 1, 2, 3]


def rounded(values, bits):
    """float32 values rounded to a significand of this many bits, as tensor cores round their inputs."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.round(mantissa * 2**bits), exponent - bits)


@pytest.mark.parametrize(
    ("round_inputs", "name"),
    [
        (lambda x: x.astype(np.float64), "float64"),
        (lambda x: x, "float32"),
        (lambda x: rounded(x, 11), "tf32"),
        (lambda x: rounded(x, 8), "bfloat16"),
        (lambda x: rounded(x, 4), "lower"),
    ],
)
def test_the_probe_names_the_precision(round_inputs, name):
    a, b, exact = proof.probe_inputs("matmul")
    assert proof.name_precision(proof.relative_error(round_inputs(a) @ round_inputs(b), exact)) == name


def test_the_probe_of_convolutions_is_one_without_padding():
    images, kernels, exact = proof.probe_inputs("convolution")
    assert exact.shape == (4, 64, 30, 30)
    assert exact[1, 2, 3, 4] == pytest.approx(np.sum(images[1, :, 3:6, 4:7].astype(np.float64) * kernels[2]))


def test_float16_that_is_added_up_in_float16_is_not_named_bfloat16():
    a, b, _ = proof.probe_inputs("matmul")
    a, b = a.astype(np.float16), b[:, :8].astype(np.float16)
    total = np.zeros((len(a), b.shape[1]), np.float16)
    for k in range(a.shape[1]):
        total += np.outer(a[:, k], b[k])
    named = proof.name_precision(proof.relative_error(total, a.astype(float) @ b.astype(float)), is_float16=True)
    assert named == "float16-accumulate"
    assert proof.name_precision(3e-4, is_float16=True) == "float16"
    proof.check_samples(OUTPUT * 1.02, OUTPUT, f"matmul {named}, convolution float16")
    with pytest.raises(MeasurementError):
        proof.check_samples(OUTPUT * 1.02, OUTPUT, "float16")


def test_the_last_timed_output_is_that_of_the_last_step():
    proof.refuse_stale_output(OUTPUT, OUTPUT, 1e-3)
    proof.refuse_stale_output(np.full(3, np.inf), OUTPUT[0, :3], 1e-3)  # flagged as not_finite
    with pytest.raises(MeasurementError, match="last timed output") as error:
        proof.refuse_stale_output(OUTPUT[::-1], OUTPUT, 0.3)  # the output of another step
    assert error.value.status == "wrong_output"


def test_two_equal_halves_of_a_batch_are_refused():
    proof.refuse_equal_halves(OUTPUT)
    proof.refuse_equal_halves(OUTPUT[:1])
    for output in (np.concatenate([OUTPUT, OUTPUT]), np.concatenate([OUTPUT, OUTPUT[:1], OUTPUT])):
        with pytest.raises(MeasurementError, match="halves"):
            proof.refuse_equal_halves(output)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_two_items_of_both_halves_are_compared(count):
    for seed in range(20):
        batches = iter([(np.arange(count),), (np.arange(count, 2 * count),)])
        workload = SimpleNamespace(make_batches=lambda *_, batches=batches: batches)
        session = SimpleNamespace(workload=workload, batch_size=count, context=SimpleNamespace(seed=seed))
        drawn = [batch for (batch,) in proof.draw_batches(session)]
        (_, first), (_, second) = places = proof.choose_places(session, count)
        assert first < max(1, count // 2) <= max(1, second) < max(2, count)
        assert len({drawn[number][place] for number, place in places}) == (1 if count == 2 else 2)


def test_two_items_with_one_output_are_refused():
    proof.refuse_useless_output(np.array([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(MeasurementError, match="two different items"):
        proof.refuse_useless_output(np.array([[1.0, 2.0], [1.0, 2.0]]))
