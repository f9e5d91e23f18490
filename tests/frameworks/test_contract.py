"""What every framework does alike, in the framework that FRAMEWORK names: small models and few steps.

On a machine with an accelerator they run on it.
"""

import itertools
import weakref

import numpy as np
import pytest

from bench import check, frameworks, precision, process
from bench.frameworks import base
from bench.settings import LACKS, TRAINING
from bench.timing import MeasurementError
from bench.timing.windows import Timer
from bench.workloads import cifar10, operators
from bench.workloads.data import epoch_order
from tests.conftest import TESTED
from tests.frameworks.sessions import Opener, assert_measured, measure_and_check
from tests.test_check import rounded

FRAMEWORK = frameworks.load(TESTED)
PHASES = ("inference", *(["training"] if "phase" in LACKS[TESTED] else TRAINING))
open_session = Opener(TESTED)


def step(session):
    """One step after what has to come before it; gives what is read after a window."""
    if session.prepare:
        session.prepare()
    session.step()
    return session.read()


def read_weights(session):
    return [session.context.read(each) for each in session.model.trained_weights().values()]


# The parts of an image model are those of an MLP, and take long to compile.
MEASURED = [*itertools.product(("mlp",), PHASES), *itertools.product(("image", "transformer"), PHASES[:2])]


@pytest.mark.parametrize(("script", "phase"), MEASURED)
def test_a_session_is_measured(script, phase):
    session = open_session(script, phase)
    assert (session.num_workers, session.queue_steps) == (None, None)
    assert (session.prepare is None) == (phase not in ("backward", "optimizer"))
    before, first = read_weights(session), step(session)
    assert (read_weights(session) != before) == (phase in ("training", "optimizer"))
    assert step(session) != first > 0
    assert_measured(session, 2)
    assert set(session.precisions.values()) == {"float32"}
    assert session.parameters == session.workload.parameters


def test_the_check_leaves_the_weights_as_they_are_and_a_step_moves_all():
    session = open_session("image", "training")
    before = {name: values.copy() for name, values in session.matrices()}
    check.compute_gradients(session)
    assert all(np.array_equal(before[name], values) for name, values in session.matrices())
    session.step()
    assert not any(np.array_equal(before[name], values) for name, values in session.matrices())
    assert len(before) == 21


def test_batchnorm_has_the_mean_0_and_one_variance_in_each_layer():
    model = open_session("image", "inference").model
    layers = [*(model.keras_model._flatten_layers() if hasattr(model, "keras_model") else model.module.modules())]
    names = "moving_mean moving_variance" if hasattr(model, "keras_model") else "running_mean running_var"
    norms = [layer for layer in layers if hasattr(layer, names.split()[0])]
    assert len(norms) > 2
    for means, variances in ([np.asarray(getattr(norm, name)) for name in names.split()] for norm in norms):
        assert not means.any()
        assert len(np.unique(variances)) == 1
        assert variances[0] not in (0, 1)


def test_four_batches_take_turns_and_depend_on_the_seed():
    first, second = (open_session(phase="inference", SEED=seed) for seed in ("1", "2"))
    values = [step(first) for _ in range(8)]
    assert len(set(values[:4])) == 4
    assert values[:4] == pytest.approx(values[4:], rel=1e-5)
    assert values[0] != pytest.approx(step(second), rel=1e-3)


@pytest.mark.skipif("phase" in LACKS[TESTED], reason="only PyTorch has parts")
def test_the_parts_together_are_the_whole():
    assert step(open_session(phase="training")) == pytest.approx(step(open_session(phase="optimizer")), rel=1e-4)


def test_close_frees_the_model():
    session = open_session()
    model = weakref.ref(session.model)
    step(session)
    session.close()
    assert model() is None


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (type("ResourceExhaustedError", (Exception,), {})("no more"), "out_of_memory"),  # TensorFlow's
        (RuntimeError("CUDA out of memory. Tried"), "out_of_memory"),
        (RuntimeError("[metal::malloc] Resource limit (499000) exceeded."), "out_of_memory"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "unsupported"),
        (RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION"), "unsupported"),
        (RuntimeError("No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')"), "unsupported"),
        (RuntimeError(f"CUDA-capable device(s) is/are {process.TAKEN}"), "failed"),
        (RuntimeError("odd"), "failed"),
    ],
)
def test_failures_are_told_apart(error, status, capsys):
    assert frameworks.classify_failure(error)["status"] == status
    assert bool(capsys.readouterr().err) == (str(error) == "odd")  # its traceback


@pytest.mark.parametrize(
    ("operator", "bits", "words"), [("matmul", 16, "float16"), ("matmul", 8, "ONEDNN"), ("convolution", 8, "ONEDNN")]
)
def test_float32_that_is_computed_in_fewer_bits_is_refused(monkeypatch, operator, bits, words):
    """Let the device read operands of float16, or of fewer bits than float32 has."""
    monkeypatch.setattr(precision, "_probed", {})
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")  # which does it on some CPUs
    right = FRAMEWORK.DeviceContext.probe

    def change(x):
        return (x.astype(np.float16) if bits == 16 else rounded(x, bits)).astype(np.float32)

    def probe(self, name, *operands):
        return right(self, name, *(map(change, operands) if name == operator else operands))

    monkeypatch.setattr(FRAMEWORK.DeviceContext, "probe", probe)
    context = FRAMEWORK.DeviceContext(open_session.settings("image"))
    with pytest.raises(MeasurementError, match=words), np.errstate(all="ignore"):
        precision.check_precision(context, has_convolutions=True)


@pytest.mark.skipif(TESTED == "torch", reason="test_accidents.py has its own compiler")
def test_a_wrong_compiled_model_is_refused(monkeypatch):
    counted = base.DeviceContext.counted

    def scale(output):
        return list(map(scale, output)) if isinstance(output, list) else 1.02 * output

    wrong = lambda context, function: counted(context, lambda *inputs: scale(function(*inputs)))  # noqa: E731
    monkeypatch.setattr(base.DeviceContext, "counted", wrong)
    with pytest.raises(MeasurementError, match=r"differs|Metal"):  # in TensorFlow, Metal has no compiler
        measure_and_check(open_session("mlp", "inference", COMPILE="1"))


def test_epochs_take_the_given_order(monkeypatch):
    images, labels = cifar10.synthetic_images(190, seed=0)
    images = cifar10.as_floats(images)
    monkeypatch.setattr(cifar10, "dataset", lambda *asked: (images[:150], labels[:150], images[150:], labels[150:]))
    session, seen, losses = open_session(scope="epoch", BATCH_SIZE="32"), [], []
    train = session.model.train
    monkeypatch.setattr(session.model, "train", lambda *batch: seen.append(batch) or train(*batch))
    order = epoch_order(150, 3, 1)
    session.train_epoch(order)
    assert [len(target) for _, target in seen] == [32, 32, 32, 32, 22]
    assert [int(label) for _, target in seen for label in target] == labels[order].tolist()
    assert np.array_equal(session.context.to_numpy(seen[0][0])[5], images[order[5]])
    for epoch in range(1, 4):
        _, flags = Timer(session, 8, 3.0).measure_epoch(epoch_order(150, 0, epoch))
        assert not {"recompiled", "not_finite"} & set(flags)
        losses.append(np.mean([float(loss) for loss in session.losses]))
    assert losses[2] < losses[0]
    assert session.evaluate() == np.mean(session.model.output(session.test_inputs).argmax(1) == labels[150:])


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16", "float16", "bfloat16"])
def test_lower_precisions_are_what_they_say(precision):
    if precision in LACKS[TESTED].get("precision", ()):
        pytest.skip("it does not have that")
    session = open_session(PRECISION=precision)
    before = read_weights(session)
    assert all(np.isfinite(step(session)) for _ in range(4))
    assert read_weights(session) != before
    session.after_first_step()
    assert session.precisions == {"matmul": precision.removeprefix("mixed_")}
    assert 1e-5 < session.output_error < 0.05


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_operators_are_measured(monkeypatch, precision):
    monkeypatch.setattr(operators, "COPY_VALUES", 2**16)
    works = [operators.bandwidth(*item) for item in operators.BANDWIDTHS.items()]
    for workload in [*works, operators.matmul((48, 40, 56)), operators.convolution_1x1((48, 40, 56))]:
        session = open_session.operator(workload, precision)
        assert_measured(session, 1)
        assert set(session.precisions.values()) == {precision}


@pytest.mark.parametrize(("shape", "norm"), [(2**26, 64), ((2, 3, 4), 2), ((), 1)])
def test_a_read_takes_at_most_4096_values_to_the_host(monkeypatch, shape, norm):
    context, moved, as_array = FRAMEWORK.DeviceContext(open_session.settings("mlp")), [], np.asarray
    (values,) = context.put(np.ones(shape, np.float32))
    monkeypatch.setattr(context, "device", "cuda")
    monkeypatch.setattr(np, "asarray", lambda values, *how: moved.append(np.size(values)) or as_array(values, *how))
    read = getattr(FRAMEWORK, "KerasContext", FRAMEWORK.DeviceContext).read  # PyTorch and MLX read a number
    assert read(context, values) == pytest.approx(norm)
    assert max(moved, default=0) <= 4096


@pytest.mark.skipif(TESTED == "torch", reason="it has 8 bits")
def test_an_operator_that_a_framework_lacks_is_unsupported():
    with pytest.raises(MeasurementError) as found:
        open_session.operator(operators.matmul((48, 40, 56), "int8"), "int8")
    assert found.value.status == "unsupported"


@pytest.mark.skipif(TESTED == "torch", reason="its copy has an output")
def test_a_copy_is_one():
    (x,) = open_session("mlp").context.put(np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32))
    copy = np.asarray(FRAMEWORK.OPERATORS["copy"](x, None))
    assert (np.array_equal(x, copy), np.shares_memory(np.asarray(x), copy)) == (True, False)
