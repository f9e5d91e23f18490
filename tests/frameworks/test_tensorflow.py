"""What is special to TensorFlow, and the Keras models, which JAX has too."""

import platform
from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf

from bench.frameworks import keras_networks, on_tensorflow
from bench.settings import SettingError, read_settings
from bench.timing import MeasurementError
from bench.workloads import operators
from tests.frameworks.sessions import SCRIPTS, Opener

open_session = Opener("tensorflow")
DEVICE = on_tensorflow.choose_device(None)
# A TensorFlow that has begun to use its GPU cannot leave it, so these cannot make it so themselves.
needs_no_gpu = pytest.mark.skipif(DEVICE != "cpu", reason="places work on a GPU that is not there")
needs_xla = pytest.mark.skipif(DEVICE == "mps", reason="Metal has no XLA")


@needs_xla
@pytest.mark.parametrize(("script", "phase"), [("mlp", "inference"), ("transformer", "training")])
def test_xla_compiles_the_step(script, phase):
    session = open_session(script, phase, COMPILE="1")
    assert all(function._jit_compile is True for function in session.model.functions)
    for _ in range(3):
        session.step()
    session.synchronize()
    assert np.isfinite(session.read())
    assert session.trace_count() == 1
    assert not any(function._jit_compile for function in open_session(script, phase).model.functions)


@pytest.mark.parametrize(
    ("script", "model"),
    [("image", "mobilenet_v2"), ("transformer", "bert-large")],
)
def test_models_of_the_same_name_have_the_same_parameters(script, model):
    environ = {"FRAMEWORK": "tensorflow", "MODEL": model, "BATCH_SIZE": "1"}
    workload = SCRIPTS[script](read_settings(script, environ))
    with keras.StatelessScope():  # shapes alone: no weight is drawn
        model = keras_networks.BUILDERS[script](workload)
    assert keras_networks.count_parameters(model) == workload.parameters


def test_a_gpu_is_set_up(monkeypatch):
    calls = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one"])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: calls.append((gpu, on)))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert on_tensorflow.choose_device(None) == "cuda"
    assert calls == [("one", True)]
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert on_tensorflow.choose_device(True) == "mps"


@pytest.mark.parametrize(("capability", "runs"), [((9, 0), True), ((12, 1), False)])
def test_a_card_that_is_too_new_is_one_line(monkeypatch, capability, runs):
    built = {"cuda_compute_capabilities": ["sm_60", "sm_89", "compute_90"]}
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: built)
    with nullcontext() if runs else pytest.raises(SettingError, match="FRAMEWORK=torch"):
        on_tensorflow.refuse_new_card(capability)


@needs_no_gpu
@pytest.mark.parametrize(
    ("script", "operator", "phase"),
    [("image", "Conv2D", "inference"), ("image", "Conv2DBackprop", "training"), ("mlp", "MatMul", "training")],
)
def test_a_gpu_that_leaves_its_work_to_the_cpu_is_refused(monkeypatch, script, operator, phase):
    # What is placed on a GPU runs on the CPU, as TensorFlow does if a kernel is missing.
    monkeypatch.setattr(on_tensorflow, "choose_device", lambda use_gpu: "mps")
    with pytest.raises(MeasurementError, match=operator) as caught:
        open_session(script, phase)
    assert caught.value.status == "unsupported"


@needs_no_gpu
def test_an_operator_that_runs_on_the_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(on_tensorflow, "choose_device", lambda use_gpu: "mps")
    with pytest.raises(MeasurementError, match="TensorFlow runs this operator on the CPU"):
        open_session.operator(operators.matmul((32, 32, 32)))


@needs_xla
def test_a_wrong_compiled_model_is_refused(monkeypatch):
    function = on_tensorflow.DeviceContext.function
    wrong = lambda context, work: function(context, lambda *batch: [1.02 * each for each in work(*batch)])  # noqa: E731
    monkeypatch.setattr(on_tensorflow.DeviceContext, "function", wrong)
    with pytest.raises(MeasurementError, match="differs from the CPU's") as caught:
        open_session("mlp", "inference", COMPILE="1")
    assert caught.value.status == "wrong_output"
