"""What is special to TensorFlow, and the Keras models, which JAX has too."""

import platform

import keras
import numpy as np
import pytest
import tensorflow as tf

from bench.frameworks import keras_networks, on_tensorflow
from bench.settings import read_settings
from bench.timing import MeasurementError
from bench.workloads import operators
from tests.frameworks.sessions import FLOPS_CASES, SCRIPTS, Opener

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
    [("image", "resnet50"), ("image", "mobilenet_v2"), ("transformer", "distilbert"), ("transformer", "bert-large")],
)
def test_models_of_the_same_name_have_the_same_parameters(script, model):
    environ = {"FRAMEWORK": "tensorflow", "MODEL": model, "BATCH_SIZE": "1"}
    workload = SCRIPTS[script](read_settings(script, environ))
    with keras.StatelessScope():  # shapes alone: no weight is drawn
        model = keras_networks.BUILDERS[script](workload)
    assert keras_networks.count_parameters(model) == workload.parameters


FLOPS = {
    "MatMul": lambda op: 2 * size(op.outputs[0]) * op.inputs[0].shape[0 if op.get_attr("transpose_a") else 1],
    "BatchMatMulV2": lambda op: 2 * size(op.outputs[0]) * op.inputs[0].shape[-2 if op.get_attr("adj_x") else -1],
    "Conv2D": lambda op: 2 * size(op.outputs[0]) * size(op.inputs[1]) // op.inputs[1].shape[-1],
    "Conv2DBackpropInput": lambda op: 2 * size(op.inputs[2]) * size(op.inputs[1]) // op.inputs[1].shape[-1],
    "Conv2DBackpropFilter": lambda op: 2 * size(op.inputs[2]) * size(op.outputs[0]) // op.inputs[2].shape[-1],
}


def size(tensor):
    return int(np.prod(tensor.shape))


def count_flops(function, *arguments):
    operations = function.get_concrete_function(*arguments).graph.get_operations()
    unknown = {op.type for op in operations if "atmul" in op.type.lower() or "conv2d" in op.type.lower()} - set(FLOPS)
    assert not unknown | ({op.type for op in operations} & {"Einsum"})
    # What nobody reads is never computed: the images' own gradient.
    return sum(FLOPS[op.type](op) for op in operations if op.type in FLOPS and op.outputs[0].consumers())


@pytest.mark.parametrize(("script", "model", "phase"), FLOPS_CASES)
def test_the_graph_takes_the_flops_that_the_row_says(script, model, phase):
    environ = {"MODEL": model, "IMAGE_SIZE": "224"}
    workload, model = open_session.workload(script, phase, **environ), open_session(script, phase, **environ).model
    inputs, labels = model.context.put(*workload.make_batches(workload.items_per_step, 0)[0])
    step = (model._infer, inputs) if phase == "inference" else (model.train_step, inputs, labels)
    assert count_flops(*step) == workload.flops_per_item * workload.items_per_step


def test_a_gpu_is_set_up(monkeypatch):
    calls = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one"])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: calls.append((gpu, on)))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert on_tensorflow.choose_device(None) == "cuda"
    assert calls == [("one", True)]
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert on_tensorflow.choose_device(True) == "mps"


@needs_no_gpu
@pytest.mark.parametrize(
    ("script", "operator", "phase"),
    [("image", "Conv2D", "inference"), ("image", "Conv2DBackprop", "training"), ("mlp", "MatMul", "training")],
)
def test_a_gpu_that_leaves_its_work_to_the_cpu_is_refused(monkeypatch, script, operator, phase):
    # What is placed on a GPU runs on the CPU, as TensorFlow does if a kernel is missing.
    monkeypatch.setattr(on_tensorflow, "choose_device", lambda use_gpu: "mps")
    with pytest.raises(MeasurementError, match=f"no kernel on this mps for .*{operator}") as caught:
        open_session(script, phase)
    assert caught.value.status == "unsupported"


@needs_no_gpu
def test_an_operator_that_runs_on_the_cpu_is_no_result_of_a_gpu(monkeypatch):
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
