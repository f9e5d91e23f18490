"""Each check refuses what it is for, and passes what is honest; the device is a fake."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from bench import check, precision
from bench.timing import MeasurementError

RANDOM = np.random.default_rng(0)
OUTPUT = RANDOM.standard_normal((4, 1000))


def refuses(words):
    """Return a context in which something must be refused; nothing must be if there are no words."""
    return pytest.raises(MeasurementError, match=words) if words else nullcontext()


class Model:
    """A model that returns its inputs, on the device and on the CPU."""

    size, parameters = 10, 10
    context = SimpleNamespace(put=lambda *arrays: arrays)

    def output(self, inputs):
        return inputs

    def on_cpu(self):
        return self


def fake_session(model="resnet50", precision="float32", device="cpu", weight_bits=None, outputs=OUTPUT, **sizes):
    """Return a session whose last step had these inputs and outputs; new steps have others."""
    context = SimpleNamespace(device=device, precision=precision, weight_bits=weight_bits, seed=0, reference_threads=1)
    context.put = lambda *arrays: arrays
    workload = SimpleNamespace(model=model, sizes=SimpleNamespace(**sizes), make_checked=None, inputs_of=lambda x: x)
    workload.items_per_step, workload.flops_per_item = 4, 1e6
    session = SimpleNamespace(context=context, workload=workload, model=Model(), notes=[], inputs=OUTPUT)
    session.settings, session.is_trained = SimpleNamespace(phase="inference", batch_size=4), False
    session.precisions = dict(zip(("matmul", "convolution"), precision.split(), strict=False))
    session.read_output = lambda: outputs
    session.read_inputs = lambda place: (session.inputs[place : place + 1],)
    session.step = lambda: setattr(session, "inputs", session.inputs + 1)
    return session


# The CPU


@pytest.mark.parametrize(
    ("device", "precision", "error", "words"),
    [
        *(("cpu", "float32", 5e-4, ""), ("cpu", "float32", 2e-3, "CPU's"), ("cuda", "float32", 5e-3, "")),
        *(("mps", "float32", 0.02, "CPU's"), ("cuda", "tf32", 0.1, ""), ("cuda", "float16", 0.3, "CPU's")),
        *(("cuda", "bfloat16", 0.4, ""), ("cuda", "bfloat16", 0.6, "CPU's"), ("mps", "lower", 0.6, "CPU's")),
        *(("mps", "float32 tf32", 0.1, ""), ("mps", "float32 tf32", 0.3, "CPU's")),  # Winograd
    ],
)
def test_the_limit_of_an_error_follows_from_what_was_measured(device, precision, error, words):
    session = fake_session(device=device, precision=precision)
    with refuses(words):
        assert check.check_items(session, OUTPUT[:2] * (1 + error), OUTPUT[:2]) == pytest.approx(error, rel=0.5)


def test_an_error_is_seen_against_what_distinguishes_two_items():
    pair = np.ones((2, 1000)) + 0.01 * OUTPUT[:2]
    with refuses("by 1.0e"):
        check.check_items(fake_session(precision="bfloat16", device="cuda"), pair[::-1], pair)


@pytest.mark.parametrize(
    ("precision", "norms", "words"),
    [
        *(("float32", (1.0, 0.95), ""), ("float32", (1.0, 1.2), "tensor 2 of 3"), ("bfloat16", (0.6, 1.7), "")),
        *(("bfloat16", (2.0, 1.0), "2 times"), ("float16", (1.0, 0.25), "tensor 2"), ("float16", (np.inf, 0.25), "")),
        *(("float16", (np.nan, 1), ""), ("bfloat16", (1, np.nan), "tensor 2 of 3"), ("float32", (np.inf, 1), "1 of 3")),
    ],
)
def test_norms_of_gradients_are_those_of_the_cpu_unless_they_are_rounding(precision, norms, words):
    session = fake_session(precision=precision)
    with refuses(words):
        check.check_gradients(session, (OUTPUT, [*norms, 9e-5]), (OUTPUT, [1.0, 1.0, 1e-6]))
    assert bool(session.notes) == (not words and not np.isfinite(norms).all())


@pytest.mark.parametrize(
    ("about", "size", "flops", "words"),
    [
        ({"weight_bits": 4}, 10, 1e6, "quantised"),
        ({"num_experts": 8}, 10, 1e6, "experts"),
        ({"model": "efficientnet_b0", "precision": "bfloat16"}, 10, 1e6, "magnifies"),
        ({"model": "efficientnet_b0"}, 10, 1e6, ""),
        ({}, 10, 1e15, "too many FLOPs"),
        ({}, 10**15, 1e6, "GB are free"),
    ],
)
def test_a_model_that_is_not_compared_says_why(about, size, flops, words):
    session = fake_session(**about)
    session.model.size, session.workload.flops_per_item = size, flops
    error = check.check_output(session, *check.copy_items(session))
    assert (error is None, words in " ".join(session.notes)) == (bool(words), True)


@pytest.mark.parametrize(("flops", "cores", "tiny"), [(1e15, 9, True), (0, 9, True), (2e11, 1, True), (2e11, 2, False)])
def test_large_and_unknown_items_are_compared_in_a_smaller_size(flops, cores, tiny):
    session = fake_session()
    session.workload.flops_per_item, session.context.reference_threads = flops, cores
    session.workload.make_checked = lambda count, seed: [(OUTPUT[:count, :10],)]
    assert check.check_output(session, *check.copy_items(session)) == 0
    assert ("smaller" in str(session.notes)) == tiny


@pytest.mark.parametrize(
    ("names", "precision", "error", "words"),
    [
        *((["matmul"], "float16", 0.02, "float64's"), (["matmul", "convolution"], "float16", 0.02, "")),
        *((["convolution"], "float32", 2e-4, "float64's"), (["convolution"], "bfloat16", 1, "float64's")),
    ],
)
def test_the_limit_of_an_operator_is_larger_for_convolutions_in_16_bits(names, precision, error, words):
    with refuses(words):
        check.check_samples((1 + error) * OUTPUT, OUTPUT, dict.fromkeys(names, precision))


# The output that was timed


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (OUTPUT, ""),
        (np.concatenate([OUTPUT[:3], OUTPUT[:1]]), "same output"),
        (np.concatenate([OUTPUT[:3], 0 * OUTPUT[:1]]), "item 3 of 4"),
        (OUTPUT * [[1], [1], [np.nan], [1]], "item 2 of 4"),
        (OUTPUT[:1].repeat(4, 0), "equal"),
    ],
)
def test_useless_outputs_are_refused(outputs, words):
    with refuses(words):
        check.copy_items(fake_session(outputs=outputs))


def test_the_last_item_is_the_last_one_with_other_inputs_and_of_one_that_of_another_step():
    session = fake_session()
    session.inputs = OUTPUT[[0, 1, 0, 0]]
    inputs, outputs = check.copy_items(session)
    assert np.array_equal(inputs[1][0], OUTPUT[1:2])
    assert np.array_equal(outputs, OUTPUT[:2])
    session = fake_session()
    session.inputs, session.read_output = OUTPUT[:1], lambda: 2 * session.inputs
    inputs, outputs = check.copy_items(session)
    assert np.array_equal(inputs[1][0], OUTPUT[:1] + 1)
    assert np.array_equal(outputs, 2 * np.concatenate([OUTPUT[:1], OUTPUT[:1] + 1]))


# The probe


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
def test_the_probe_names_the_precision(monkeypatch, round_inputs, name):
    monkeypatch.setattr(precision, "_probed", {})
    context = fake_session().context
    context.probe = lambda name, left, right: (round_inputs(left) @ round_inputs(right), False)
    assert precision.probe(context, "matmul") == name


def test_a_blas_that_fails_is_not_a_precision(monkeypatch):
    monkeypatch.setattr(precision, "_probed", {})
    context = fake_session().context
    context.probe = lambda name, left, right: (2.69 * left @ right, False)
    with refuses("169%.* BLAS of this cpu .* NumPy"):
        precision.check_precision(context, has_convolutions=False)
