"""What every framework does alike: small models and few steps. On a machine with an accelerator they run on it.

Each test runs with the framework of one file, on_numpy.py, and with the one that FRAMEWORK names.
"""

import itertools
import os
import platform
import re
import subprocess
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from bench import frameworks
from bench.frameworks import base
from bench.records import results
from bench.settings import FRAMEWORKS, Framework, SettingError, read_settings
from bench.timing import MeasurementError, measure
from bench.workloads import cifar10, data, operators
from image_benchmark import image_workload
from llm_benchmark import llm_workload
from mlp_benchmark import mlp_workload
from tests.conftest import TESTED
from tests.frameworks.sessions import SCRIPTS, SMALL, Opener

PHASES = ("inference", "training", "forward", "backward", "optimizer")


@pytest.fixture(params=[*(["numpy"] if TESTED == "torch" else []), TESTED])  # once, not in every environment
def opener(request, monkeypatch):
    monkeypatch.setattr(frameworks, "__path__", [*frameworks.__path__, "tests/frameworks"])
    monkeypatch.setitem(FRAMEWORKS, "numpy", Framework("NumPy"))
    return Opener(request.param)


@pytest.fixture
def real():
    """An Opener of a framework that has precisions, operators and models of its own."""
    return Opener(TESTED)


def step(session):
    """One step after what has to come before it; gives what a probe reads."""
    if session.prepare:
        session.prepare()
    session.step()
    return session.read()


def needs(framework, what):
    """Skip a test of something that a framework does not have."""
    if what in FRAMEWORKS[framework.name].lacks:
        pytest.skip(f"{FRAMEWORKS[framework.name].title} has no {what}")


def read_weight(session):
    return session.context.read(session.model.last_weight)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_session_is_measured(opener, script, phase):
    if script == "image" and phase not in ("inference", "training"):
        return  # its parts are those of an MLP, and take long to compile
    session = opener(script, phase)
    assert session.measured_precision == "float32"
    assert (session.num_workers, session.queue_steps) == (None, None)
    assert (session.prepare is None) == (phase not in ("backward", "optimizer"))
    measured = measure.measure(measure.Job(session, 2, max_seconds=0.1))
    assert not {"recompiled", "not_finite"} & set(measured.flags)
    workload = SCRIPTS[script](opener.settings(script))
    assert session.parameters == (session.model.weights.size if opener.name == "numpy" else workload.parameters)
    on_cpu = session.context.device == "cpu"
    assert not on_cpu or session.context.peak_memory_bytes() is session.context.reserved_memory_bytes() is None


def test_16_bit_output_has_its_error_against_float32(real):
    errors, has_mixed = {}, "mixed" not in FRAMEWORKS[real.name].lacks
    for precision in ("float32", "bfloat16", *["mixed_bfloat16"] * has_mixed):
        session = real("mlp", "inference", PRECISION=precision)
        errors[precision] = session.output_error
        session.close()
    assert (errors["float32"] or 0) < 1e-5  # a GPU's is known
    assert all(1e-4 < error < 0.05 for precision, error in errors.items() if precision != "float32")


def test_batches_take_turns_and_the_seed_decides(opener):
    def probes(seed):
        session = opener(phase="inference", SEED=seed)
        return [step(session) for _ in range(8)]

    values = probes("1")
    assert len(set(values[:4])) == 4
    assert values[:4] == pytest.approx(values[4:], rel=1e-5)
    assert values == pytest.approx(probes("1"), rel=1e-5)
    assert values != pytest.approx(probes("2"), rel=1e-3)


@pytest.mark.parametrize("phase", PHASES)
def test_training_and_the_optimizer_change_the_weights_and_nothing_else_does(opener, phase):
    session = opener(phase=phase)
    before, first = read_weight(session), step(session)
    assert (read_weight(session) != before) == (phase in ("training", "optimizer"))
    assert step(session) != first > 0


def test_the_parts_together_are_the_whole(opener):
    whole, parts = opener(phase="training"), opener(phase="optimizer")
    assert step(whole) == pytest.approx(step(parts), rel=1e-4)


def test_close_frees_the_model_and_can_be_called_twice(opener):
    session = opener()
    model = weakref.ref(session.model)
    step(session)
    session.close()
    session.close()
    assert model() is None


def test_unknown_work_is_refused(opener):
    settings = opener.settings("mlp")
    workload = replace(mlp_workload(settings), name="chess")
    with pytest.raises(SettingError, match=f"FRAMEWORK='{opener.name}' cannot run chess: it has image, mlp"):
        opener.framework.open_session(workload, settings, "training", "device")
    if "llm" not in opener.framework.BUILDERS:
        settings = read_settings("llm", {"PHASE": "decode"}).on("cpu")
        with pytest.raises(SettingError, match=f"FRAMEWORK='{opener.name}' cannot run llm: it has image, mlp"):
            opener.framework.open_session(llm_workload(settings), settings, "decode", "device")
    for scope in ("device", "input"):
        with pytest.raises(SettingError, match=r"MODEL='unknown' is not in .*: did you mean "):
            opener("image", scope=scope, MODEL="unknown")


def test_the_device_is_described(opener):
    def find(**environ):
        return opener.framework.find_device(read_settings("mlp", environ))

    found = find()
    assert found == find(USE_GPU="1")
    assert found.framework_version
    assert found.num_threads >= 1
    if found.device == "cpu":  # a TensorFlow that has begun to use its GPU cannot leave it
        assert found == find(USE_GPU="0")


def named(name, words):
    """Return an exception of a type of this name."""
    return type(name, (Exception,), {})(words)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError("no more"), "out_of_memory"),
        (RuntimeError("CUDA out of memory. Tried"), "out_of_memory"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), "out_of_memory"),
        (NotImplementedError("no such operator"), "unsupported"),
        # PyTorch's
        (named("OutOfMemoryError", "no more"), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
        (RuntimeError("FIND was unable to find an engine to execute this computation"), "out_of_memory"),
        (RuntimeError("the MPS framework doesn't support float64."), "unsupported"),
        # TensorFlow's
        (named("ResourceExhaustedError", "no more"), "out_of_memory"),
        (RuntimeError("failed to allocate memory [Op:AddV2]"), "out_of_memory"),
        (RuntimeError("Could not satisfy device specification '/device:GPU:0'."), "unsupported"),
        # JAX's
        (RuntimeError("RESOURCE_EXHAUSTED: allocating 68719476736 bytes"), "out_of_memory"),
        (RuntimeError("UNIMPLEMENTED: no such convolution"), "unsupported"),
        # MLX's
        (RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory"), "out_of_memory"),
        (
            RuntimeError("[metal::malloc] 9 bytes which is greater than the maximum allowed buffer size"),
            "out_of_memory",
        ),
        (ValueError("float64 is not supported on the GPU"), "unsupported"),
    ],
)
def test_failures_are_told_apart(error, status):
    assert frameworks.describe_failure(error) == (status, str(error))


def test_an_unknown_failure_is_one_line_with_its_type():
    assert frameworks.describe_failure(RuntimeError("odd\nthing")) == ("failed", "RuntimeError: odd thing")


def test_the_cross_entropy_of_tokens_is_their_mean(real):
    random = np.random.default_rng(0)
    logits, labels = random.standard_normal((2, 3, 5), dtype=np.float32), random.integers(5, size=(2, 3))
    likelihoods = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(likelihoods, labels[..., None], -1))[..., 0]
    put, loss = real("mlp").context.put, real.framework.LOSSES["cross_entropy"]
    assert float(loss(*put(logits, labels))) == pytest.approx(expected.mean(), rel=1e-5)
    assert float(loss(*put(logits[0], labels[0]))) == pytest.approx(expected[0].mean(), rel=1e-5)


# Wrong devices


def compute_wrongly(monkeypatch, wrong):
    """Let the device, and not the CPU that it is compared with, return wrong([output, gradient])."""
    right, init = base.DeviceContext.check_model, base.DeviceContext.__init__

    def compare_always(self, *arguments, **options):
        init(self, *arguments, **options)
        self.compares_with_cpu = True

    monkeypatch.setattr(base.DeviceContext, "__init__", compare_always)
    monkeypatch.setattr(
        base.DeviceContext,
        "check_model",
        lambda self, evaluate, expected: right(self, lambda: wrong(evaluate()), expected),
    )


FACTORS = itertools.cycle((1, 1.2))
WRONG = {
    "permuted_classes": lambda output, *rest: [output[:, ::-1], *rest],
    "permuted_items": lambda output, *rest: [output[::-1], *rest],
    "ignored_input": lambda output, *rest: [np.repeat(output[:1], 2, 0), *rest],
    "scaled": lambda output, *rest: [1.4 * output, *rest],
    "zero": lambda output, *rest: [0 * output, *rest],
    "not_a_number": lambda output, *rest: [np.full_like(output, np.nan), *rest],
    "no_gradient": lambda output, gradient: [output, 0 * gradient],
    "twice_the_gradient": lambda output, gradient: [output, 2 * gradient],
    "unsteady": lambda output, *rest: [output * next(FACTORS), *rest],
}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WRONG)
def test_a_device_that_computes_something_else_is_refused(opener, monkeypatch, name, precision):
    needs(opener, precision)
    compute_wrongly(monkeypatch, lambda right: right)
    assert 0 <= opener("mlp", PRECISION=precision).output_error < 0.05
    compute_wrongly(monkeypatch, lambda right: WRONG[name](*right))
    with pytest.raises(MeasurementError) as error:
        opener("mlp", PRECISION=precision)
    assert error.value.status == "wrong_output"


@pytest.mark.parametrize("name", ["ignored_input", "zero", "not_a_number", "no_gradient", "unsteady"])
def test_much_is_refused_without_the_cpu_to_compare_with(opener, monkeypatch, name):
    right = base.DeviceContext.check_model
    wrong = lambda evaluate: lambda: WRONG[name](*evaluate())  # noqa: E731
    monkeypatch.setattr(
        base.DeviceContext, "check_model", lambda self, evaluate, expected: right(self, wrong(evaluate), None)
    )
    with pytest.raises(MeasurementError) as error:
        opener("mlp")
    assert error.value.status == "wrong_output"


@pytest.mark.parametrize("place", ["inputs", "output"])
def test_float16_under_the_name_of_float32_is_refused(opener, monkeypatch, place):
    monkeypatch.setattr(base, "_probed", {})
    context, short = opener.framework.DeviceContext, lambda x: x.astype(np.float16).astype(np.float32)
    right = context.probe

    def probe(self, name, left, right_hand):
        if place == "inputs":
            return right(self, name, short(left), short(right_hand))
        result, is_float16 = right(self, name, left, right_hand)
        return short(result), is_float16

    monkeypatch.setattr(context, "probe", probe)
    with pytest.raises(MeasurementError, match="float16") as error, np.errstate(all="ignore"):
        opener("mlp", "inference")
    assert error.value.status == "wrong_output"


def test_later_processes_compare_nothing(opener):
    workload, settings = opener.workload("mlp", "training"), opener.settings("mlp")
    session = opener.framework.open_session(workload, settings, "training", "device", compares=False)
    assert session.output_error is None
    assert not session.context.compares_with_cpu


@pytest.mark.parametrize("error", [ImportError("no symbol"), OSError("libcudart.so.13: cannot open\nshared object")])
def test_a_framework_that_cannot_be_imported_is_one_line(monkeypatch, error):
    def fail(name):
        raise error

    monkeypatch.setattr(frameworks.importlib, "import_module", fail)
    with pytest.raises(SettingError, match=rf"FRAMEWORK='jax'.*{str(error).split()[0]}"):
        frameworks.load("jax")


# Streams


@pytest.mark.parametrize(("scope", "workers"), [("input", "0"), ("end_to_end", "2")])
def test_a_stream_is_measured(opener, scope, workers):
    session = opener("image", scope=scope, NUM_WORKERS=workers)
    assert session.num_workers == int(workers)
    assert (session.queue_steps == 0) == (workers == "0")
    assert (session.parameters is None) == (scope == "input")
    measured = measure.measure(measure.Job(session, 2, max_seconds=0.2))
    assert measured.items == 2 * measured.windows * measured.steps_per_window
    session.close()


def streamed_images(real, phase, paths, monkeypatch):
    """Images of a stream in NumPy, channels last."""
    monkeypatch.setattr(data, "jpeg_files", lambda seed: paths)
    environ = {"IMAGE_SIZE": "224", "BATCH_SIZE": "1", "NUM_WORKERS": "0"}
    settings = real.settings("image", **environ)
    stream = real("image", scope="input", **environ).context.open_stream(image_workload(settings), settings, phase)
    while True:
        image = np.asarray(next(stream.batches)[0])[0]
        yield image.transpose(1, 2, 0) if image.shape[0] == 3 else image


def test_images_are_transformed_as_for_imagenet(real, tmp_path, monkeypatch):
    """Against the definition, in NumPy and PIL: resize the short side to 256, cut 224, normalise."""
    (path,) = data.write_jpegs(tmp_path, 1, seed=1)
    got = next(streamed_images(real, "inference", [path], monkeypatch))
    image = Image.open(path).convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize([int(side * scale) for side in image.size], Image.Resampling.BILINEAR)
    left, top = ((side - 224) / 2 for side in image.size)
    cut = np.asarray(image.crop((round(left), round(top), round(left) + 224, round(top) + 224)), np.float32) / 255
    expected = (cut - data.IMAGENET_MEAN) / data.IMAGENET_STD
    assert np.abs(got - expected).mean() < 0.05


def test_training_images_are_cropped_at_random(real, tmp_path, monkeypatch):
    images = streamed_images(real, "training", data.write_jpegs(tmp_path, 1, seed=1), monkeypatch)
    first, second = next(images), next(images)
    assert first.shape == second.shape == (224, 224, 3)
    assert not np.array_equal(first, second)


# Epochs


@pytest.fixture
def small_dataset(monkeypatch):
    """150 images to learn from and 40 to test on."""
    images, labels = cifar10.synthetic_images(190, seed=0)
    images = cifar10.as_floats(images)
    split = images[:150], labels[:150], images[150:], labels[150:]
    monkeypatch.setattr(cifar10, "dataset", lambda kind, seed: split)
    return split


def test_epochs_learn_without_compiling_again(opener, small_dataset):
    session = opener(scope="epoch", BATCH_SIZE="32")
    losses = []
    for epoch in range(1, 4):
        _, flags = measure.measure_epoch(measure.Job(session, 8, 3.0), data.epoch_order(150, 0, epoch))
        assert flags == []
        losses.append(np.mean(session.losses()))
    assert len(session.losses()) == 5
    assert losses[2] < losses[0]
    assert 0 <= session.evaluate() <= 1


def test_an_epoch_takes_the_batches_in_the_given_order(opener, small_dataset, monkeypatch):
    session, seen = opener(scope="epoch", BATCH_SIZE="64"), []
    train = session.model.train
    monkeypatch.setattr(session.model, "train", lambda *batch: (seen.append(batch), train(*batch)))
    order = data.epoch_order(150, 3, 1)
    session.train_epoch(order)
    assert [len(labels) for _, labels in seen] == [64, 64, 22]
    assert [int(label) for _, labels in seen for label in labels] == small_dataset[1][order].tolist()
    row = session.context.read(seen[0][0][5])
    assert row == pytest.approx(np.linalg.norm(small_dataset[0][order[5]]), rel=1e-5)


def test_the_accuracy_is_the_share_of_right_answers(opener, small_dataset, monkeypatch):
    session, labels = opener(scope="epoch"), small_dataset[3]
    wrong = np.where(np.arange(40) < 10, labels, (labels + 1) % 10)
    monkeypatch.setattr(session.model, "predict", lambda inputs: np.eye(10)[wrong])
    assert session.evaluate() == 0.25


# Precisions and operators


@pytest.mark.parametrize(
    ("precision", "measured"),
    [
        ("mixed_bfloat16", "bfloat16"),
        ("mixed_float16", "float16"),
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_lower_precisions_are_what_they_say_and_train(real, precision, measured):
    needs(real, precision.partition("_")[0])
    session = real(PRECISION=precision)
    assert session.measured_precision == measured
    before = read_weight(session)
    assert all(np.isfinite(step(session)) for _ in range(4))
    assert read_weight(session) != before


def test_tf32_is_not_promised_where_there_is_none(opener):
    if opener.framework.find_device(opener.settings("mlp")).device == "cuda":
        pytest.skip("this device may have TF32")
    with pytest.raises(MeasurementError, match="no TF32: it computes in float32") as error:
        opener(PRECISION="tf32")
    assert error.value.status == "unsupported"


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "float64"])
def test_operators_are_right_and_can_be_measured(real, monkeypatch, precision):
    needs(real, precision)
    if precision == "float64" and real.framework.find_device(real.settings("mlp")).device == "mps":
        pytest.skip("MPS has no float64")
    monkeypatch.setattr(operators, "COPY_NUMBERS", 2**16)
    size = (48, 40, 56)
    works = [operators.matmul(size), operators.convolution_1x1(size)]
    works += [operators.bandwidth(*item) for item in operators.BANDWIDTHS.items()]
    for workload in works:
        session = real.operator(workload, precision)
        assert session.measured_precision == precision
        assert measure.measure(measure.Job(session, 1, max_seconds=0.05)).windows


@pytest.mark.parametrize(
    ("build", "precision"),
    [
        (lambda: operators.matmul_of_bytes("int8", (32, 48, 64)), "int8"),
        (lambda: operators.matmul_of_bytes("float8_e4m3", (32, 48, 64)), "float8_e4m3"),
        *[(lambda name=name: operators.gemv(name), name) for name in operators.GEMV_PRECISIONS],
        (lambda: operators.attention(32, "cpu"), "float32"),
        (lambda: operators.attention(32, "cpu"), "bfloat16"),
    ],
)
def test_an_operator_is_right_or_unsupported(real, monkeypatch, build, precision):
    monkeypatch.setattr(operators, "GEMV_SIDE", 64)
    try:
        session = real.operator(build(), precision)
    except Exception as error:
        found = getattr(error, "status", frameworks.describe_failure(error)[0])
        assert found == "unsupported"
        assert real.framework.find_device(real.settings("tflops")).device != "cpu" or real.name != "torch"
    else:
        session.step()
        session.check_last_step()
        assert session.measured_precision == precision


@pytest.mark.skipif(TESTED == "torch", reason="its copy has an output")
@pytest.mark.parametrize("system", ["Linux", "Darwin"])
def test_a_copy_is_one(real, monkeypatch, system):
    monkeypatch.setattr(platform, "system", lambda: system)
    (x,) = real("mlp").context.put(np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32))
    copy = real.framework.OPERATORS["copy"](x, None)
    assert np.array_equal(x, copy)
    assert not np.shares_memory(np.asarray(x), np.asarray(copy))


@pytest.mark.skipif(TESTED == "torch", reason="tests/test_commands.py runs it")
def test_make_runs_it(tmp_path):
    environ = SMALL["mlp"] | {"FRAMEWORK": TESTED, "MAX_SECONDS": "0.1", "MACHINE": "here", "RUNS": "1"}
    environ |= {"PHASE": "inference"} | ({} if "threads" in FRAMEWORKS[TESTED].lacks else {"NUM_THREADS": "1"})
    command = ["make", "mlp", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environ)
    assert done.returncode == 0, done.stderr
    assert TESTED in done.stdout.splitlines()[0]
    (row,) = results.read(tmp_path / "results" / "here.csv")
    assert (row["framework"], row["num_threads"]) == (TESTED, "1")
    is_for_tests = TESTED == "mlx" and row["device"] == "cpu" and sys.platform == "linux"
    assert ("for tests" in row["note"]) == is_for_tests
    assert [line for line in done.stderr.splitlines() if not re.match("[0-9:]{8}  ", line)] == []  # our log's lines


def test_a_wrong_operator_is_refused(real, monkeypatch):
    right = real.framework.OPERATORS["matmul"]
    monkeypatch.setitem(real.framework.OPERATORS, "matmul", lambda a, b: right(a, b) * 1.01)
    with pytest.raises(MeasurementError, match="the output differs from float64"):
        real.operator(operators.matmul((32, 32, 32)))
