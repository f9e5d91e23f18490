"""Wrong work is refused before it is timed; right work is not."""

import numpy as np
import pytest

from bench.timing import check
from bench.timing.measure import MeasurementError

RANDOM = np.random.default_rng(0)
OUTPUT = RANDOM.standard_normal((2, 1000))


def test_a_compiled_model_may_only_differ_by_rounding():
    check.check_compiled(OUTPUT * 1.0001, OUTPUT)
    check.check_compiled(OUTPUT * 1.01, OUTPUT, again=OUTPUT)  # BatchNorm in training amplifies rounding
    check.check_compiled(OUTPUT * 2, OUTPUT, again=-OUTPUT)  # random layers
    for wrong, again in ((1.01, None), (1.5, OUTPUT), (np.nan, OUTPUT)):
        with pytest.raises(MeasurementError, match="compiled, the output differs"):
            check.check_compiled(OUTPUT * wrong, OUTPUT, again)


@pytest.mark.parametrize(
    ("got", "expected", "said"),
    [
        (OUTPUT * (1 + 1e-5 * RANDOM.standard_normal(OUTPUT.shape)), OUTPUT, None),  # rounding
        (OUTPUT, None, None),
        (OUTPUT * 1.01, OUTPUT, "1.0e-02"),
        (np.where(np.abs(OUTPUT) > 2, np.nan, OUTPUT), OUTPUT, "NaN"),
        (np.full((2, 10), np.inf), None, "infinities"),
        (np.zeros((2, 10)), np.zeros((2, 10)), "zero"),
        # a model that ignores its input: the two items differ less than the two devices
        (np.ones((2, 10)) + 5e-4, np.ones((2, 10)), "two items"),
    ],
)
def test_a_wrong_output_is_refused(got, expected, said):
    if said is None:
        check.check_output(got, expected, check.MAX_RELATIVE_ERROR)
        return
    with pytest.raises(MeasurementError) as error:
        check.check_output(got, expected, check.MAX_RELATIVE_ERROR)
    assert error.value.status == "wrong_output"
    assert said in str(error.value)


def test_another_model_is_refused():
    check.check_parameters(7, 7)
    check.check_parameters(7, None)
    with pytest.raises(MeasurementError, match=r"8 .*not 7") as error:
        check.check_parameters(8, 7)
    assert error.value.status == "wrong_model"


def mean_loss(logits, targets):
    likelihoods = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return -np.log(np.take_along_axis(likelihoods, targets[..., None], -1)).mean()


def test_the_first_loss_is_that_of_random_targets():
    logits, targets = RANDOM.standard_normal((2, 64, 1000)), RANDOM.integers(1000, size=(2, 64))
    check.check_first_loss(mean_loss(logits, targets), logits)
    check.check_first_loss(np.log(1000) + 1 / 2, logits)
    check.check_first_loss(np.log(1000) + 4 / 2, 2 * logits)
    leaked = logits + np.eye(1000)[targets]
    for wrong in (mean_loss(leaked, targets), 2 * mean_loss(logits, targets), np.log(1000) - 1 / 2, np.nan):
        with pytest.raises(MeasurementError, match="first loss"):
            check.check_first_loss(wrong, logits)


def rounded(values, bits):
    """float32 values rounded to a significand of this many bits, as tensor cores round their inputs."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.round(mantissa * 2**bits), exponent - bits)


def matmul_error(round_inputs):
    (a, b), _ = check.probe_inputs()
    return check.relative_error(round_inputs(a) @ round_inputs(b), a.astype(np.float64) @ b)


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
    error = matmul_error(round_inputs)
    assert check.name_precision(error, error) == name


def test_matmul_and_convolution_may_differ_in_precision():
    assert check.name_precision(1e-7, 3e-4) == "matmul float32, convolution tf32"
    assert check.name_precision(3e-4, 3e-4, is_float16=True) == "float16"


def test_float16_that_is_added_up_in_float16_is_not_named_bfloat16():
    (a, b), _ = check.probe_inputs()
    a, b = a.astype(np.float16), b[:, :64].astype(np.float16)
    total = np.zeros((len(a), b.shape[1]), np.float16)
    for k in range(a.shape[1]):
        total += np.outer(a[:, k], b[k])
    error = check.relative_error(total, a.astype(np.float64) @ b.astype(np.float64))
    named = check.name_precision(error, 3e-4, is_float16=True)
    assert named == "matmul float16-accumulate, convolution float16"
    check.check_samples(OUTPUT * 1.02, OUTPUT, named)
    for precision in ("float16", "matmul float32, convolution float32"):
        with pytest.raises(MeasurementError):
            check.check_samples(OUTPUT * 1.02, OUTPUT, precision)


def test_the_last_timed_output_is_that_of_the_last_step():
    check.check_last_output(OUTPUT, OUTPUT, 1e-3)
    check.check_last_output(np.full(3, np.inf), OUTPUT[0, :3], 1e-3)  # flagged as not_finite
    with pytest.raises(MeasurementError, match="last timed output") as error:
        check.check_last_output(OUTPUT[::-1], OUTPUT, 0.3)  # the output of another step
    assert error.value.status == "wrong_output"


GRADIENTS = [RANDOM.standard_normal((20, 30)), 0.1 * RANDOM.standard_normal(30), 1e-9 * RANDOM.standard_normal(30)]


def test_a_gradient_may_differ_by_rounding_and_a_vanishing_one_by_anything():
    rounded = [each.astype(np.float32) for each in GRADIENTS[:2]] + [-GRADIENTS[2]]
    check.check_gradients(rounded, GRADIENTS, [1e-7] * 3, "float32")
    flipped = [GRADIENTS[0].copy(), *GRADIENTS[1:]]
    flipped[0][:, 0] = 0  # a ReLU flips one of its 30 units
    assert check.gradient_errors(flipped, GRADIENTS)[0] > 0.1
    check.check_gradients(flipped, GRADIENTS, [1e-6] * 3, "float32")
    with pytest.raises(MeasurementError, match="gradient"):  # the CPU's own rounding excuses no wrong one
        check.check_gradients([2 * each for each in GRADIENTS], GRADIENTS, [1.0] * 3, "float32")


@pytest.mark.parametrize(
    ("wrong", "factor", "precision"),
    [(0, 1.5, "float32"), (1, 1.01, "float32"), (1, 2.0, "bfloat16"), (1, 0.0, "float16"), (1, np.nan, "bfloat16")],
)
def test_a_wrong_gradient_of_one_weight_is_refused(wrong, factor, precision):
    got = [each * factor if place == wrong else each for place, each in enumerate(GRADIENTS)]
    with pytest.raises(MeasurementError, match="gradient") as error:
        check.check_gradients(got, GRADIENTS, [1e-7] * 3, precision)
    assert error.value.status == "wrong_output"
