"""What is special to JAX."""

import platform
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from bench.frameworks import keras_networks, on_jax
from bench.settings import SettingError, read_settings
from bench.timing import MeasurementError
from tests.frameworks.sessions import FLOPS_CASES, Opener

open_session = Opener("jax")


def test_a_row_says_that_it_is_compiled():
    assert {read_settings("image", {"FRAMEWORK": "jax"} | compile).compile for compile in ({}, {"COMPILE": "0"})} == {
        "1"
    }
    assert read_settings("tflops", {"FRAMEWORK": "jax"}).compile is None
    with pytest.raises(SettingError, match="COMPILE='max-autotune'"):
        read_settings("image", {"FRAMEWORK": "jax", "COMPILE": "max-autotune"})


class WrongCompiler:
    """JAX whose compiled functions are wrong by 2 %."""

    def __getattr__(self, name):
        return getattr(jax, name)

    def jit(self, work, **options):
        return jax.jit(lambda *batch: jax.tree.map(lambda each: each * 1.02, work(*batch)), **options)


def test_a_wrong_compiled_model_is_refused(monkeypatch):
    monkeypatch.setattr(on_jax, "jax", WrongCompiler())
    with pytest.raises(MeasurementError, match="differs from the CPU's") as caught:
        open_session("mlp", "inference")
    assert caught.value.status == "wrong_output"


def test_synchronize_waits_for_all_that_was_submitted():
    session = open_session("mlp", MODEL="mlp-500", BATCH_SIZE="64")
    for _ in range(4):
        session.step()
    session.synchronize()
    assert all(array.is_ready() for array in jax.live_arrays())
    assert session.updates() == 4


def test_steps_in_a_row_give_what_single_ones_give():
    """The old weights are donated to the new ones: a step that ran too early, or not at all, would differ."""
    weights = []
    for waits in (False, True):
        session = open_session("mlp")
        for _ in range(3):
            session.step()
            if waits:
                session.synchronize()
        weights.append([np.array(each) for each in session.model.trained])
    assert all(np.array_equal(queued, single) for queued, single in zip(*weights, strict=True))


def test_float64_is_turned_on_only_for_its_sessions():
    assert open_session("mlp", "training", PRECISION="float64").model.trained[0].dtype == np.float64
    assert open_session("mlp", "training").model.trained[0].dtype == np.float32


def count_flops(jaxpr):
    """Count the FLOPs of matrix products and convolutions, at 1 multiply-add = 2 FLOPs."""
    flops = 0
    for equation in jaxpr.eqns:
        inner = [
            each for value in equation.params.values() for each in (value if isinstance(value, tuple) else (value,))
        ]
        flops += sum(count_flops(each.jaxpr) for each in inner if isinstance(each, ClosedJaxpr))
        flops += sum(count_flops(each) for each in inner if isinstance(each, Jaxpr))
        name, output = equation.primitive.name, equation.outvars[0].aval
        left, right = ([each.aval for each in equation.invars] + [None, None])[:2]
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            flops += 2 * output.size * int(np.prod([left.shape[axis] for axis in contracted]))
        elif name == "conv_general_dilated":
            axes = equation.params["dimension_numbers"]
            is_spread = max(equation.params["lhs_dilation"]) > 1  # by the stride of the forward pass, with zeros
            many, channels = (
                (left, left.shape[axes.lhs_spec[1]]) if is_spread else (output, right.shape[axes.rhs_spec[0]])
            )
            flops += 2 * many.size * right.size // channels
    return flops


@pytest.mark.parametrize(("script", "model", "phase"), [case for case in FLOPS_CASES if "resnet50" not in case])
def test_a_step_takes_the_flops_that_the_row_says(script, model, phase, monkeypatch):
    monkeypatch.setattr(on_jax.DeviceContext, "check_model", lambda *_: None)  # only the step is looked at
    monkeypatch.setattr(on_jax.DeviceContext, "can_compare", lambda *_: False)
    monkeypatch.setattr(keras_networks, "calibrate", lambda *_: None)
    environ = {"MODEL": model, "IMAGE_SIZE": "224"}
    workload, model = open_session.workload(script, phase, **environ), open_session(script, phase, **environ).model
    inputs, labels = model.context.put(*workload.make_batches(workload.items_per_step, 0)[0])
    weights = model.trained, model.others
    step = (
        (model._infer, *weights, inputs)
        if phase == "inference"
        else (model._train, *weights, model.slots, inputs, labels)
    )
    assert count_flops(jax.make_jaxpr(step[0])(*step[1:]).jaxpr) == workload.flops_per_item * workload.items_per_step


@pytest.mark.parametrize(
    ("system", "kind", "name"),
    [("Linux", "cpu", "cpu"), ("Linux", "gpu", "cuda"), ("Darwin", "cpu", "cpu"), ("Darwin", "METAL", "mps")],
)
def test_devices_have_the_names_of_the_other_frameworks(monkeypatch, system, kind, name):
    monkeypatch.setattr(platform, "system", lambda: system)
    assert on_jax.name_of(SimpleNamespace(platform=kind)) == name


def test_a_gpu_is_found_and_its_peak_memory_is_known_if_it_rises(monkeypatch):
    stats = {"bytes_in_use": 100, "peak_bytes_in_use": 400}
    gpu = SimpleNamespace(platform="gpu", device_kind="NVIDIA T4", memory_stats=lambda: stats)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(jax, "devices", lambda kind=None: [gpu])
    found = on_jax.find_device(open_session.settings("mlp"))
    assert (found.device, found.device_name, found.has_own_memory) == ("cuda", "NVIDIA T4", True)
    context = object.__new__(on_jax.DeviceContext)
    context.place = gpu
    context.used_before, context.peak_before = context._read_memory()
    assert context.peak_memory_bytes() is None
    stats["peak_bytes_in_use"] = 1000
    assert context.peak_memory_bytes() == 900
