"""What is special to MLX: steps that evaluate everything, its networks, and the same numbers as PyTorch."""

import io
import re

import mlx.core as mx
import numpy as np
import psutil
import pytest
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import llama

from bench.frameworks import on_mlx, on_mlx_networks
from bench.settings import SettingError
from bench.timing import MeasurementError, measure
from bench.tune import recipe
from tests.frameworks import torch_reference
from tests.frameworks.sessions import Opener, assert_same_work, open_llm

open_session = Opener("mlx")
DEVICE = on_mlx.choose_device(None)
# Milliseconds in a step: what is skipped shows. A step that fills a window cannot be skipped.
MIDDLE = {"MODEL": "mlp-64-32" if DEVICE == "cpu" else "mlp-5x2048", "BATCH_SIZE": "32" if DEVICE == "cpu" else "1024"}


def count_pending(*trees):
    """How many operators of these arrays' graphs are not evaluated."""

    graph = io.StringIO()
    mx.export_to_dot(graph, *on_mlx.leaves(trees))
    return graph.getvalue().count("[label")


# Lazy evaluation


@pytest.mark.parametrize(
    ("script", "phase", "produced"),
    [
        ("mlp", "inference", lambda session: session.last_result),
        ("image", "training", lambda session: [session.model.loss, session.model.state]),
        ("image", "forward", lambda session: [session.model.loss, session.model.state]),
        ("mlp", "backward", lambda session: session.model.gradients),
        ("mlp", "optimizer", lambda session: session.model.state),
        ("llm", "decode", lambda session: [session.last_result, [layer.state for layer in session.model.cache]]),
    ],
)
def test_a_step_leaves_nothing_unevaluated(tiny_decoders, script, phase, produced):
    session = open_llm(phase) if script == "llm" else open_session(script, phase, OPTIMIZER="adam")
    for _ in range(2):
        if session.prepare:
            session.prepare()
        session.step()
        assert count_pending(produced(session)) == 0
    if phase == "forward":
        assert count_pending(session.model.gradients) > 0  # the backward pass is not part of it


def evaluate_only_the_loss(session):
    model = session.model

    def train(*batch):
        model.loss = model._train(*batch)
        mx.async_eval(model.loss)

    model.train = train


def evaluate_only_what_is_read(session):
    """The steps evaluate nothing, so the read evaluates the last output of each window."""
    session.model.infer = session.model._infer


@pytest.mark.parametrize(
    ("phase", "skip", "said"),
    [("training", evaluate_only_the_loss, "not evaluated"), ("inference", evaluate_only_what_is_read, "do not run")],
)
def test_steps_that_leave_work_unevaluated_are_refused(phase, skip, said):
    session = open_session("mlp", phase, **MIDDLE)
    skip(session)
    with pytest.raises(MeasurementError, match=said) as caught:
        measure.measure(measure.Job(session, 8, max_seconds=0.1))
    assert caught.value.status == "work_skipped"


def test_the_read_of_a_backward_pass_waits_for_all_gradients(monkeypatch):
    session = open_session("mlp", "backward")
    monkeypatch.setattr(session.model, "backward", lambda: None)
    session.prepare()
    session.step()
    session.read()
    assert count_pending(session.model.gradients) == 0


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_a_compiled_step_is_compiled_once_and_computes_the_same(phase):
    values = []
    for compiled in ("0", "1"):
        session = open_session("mlp", phase, COMPILE=compiled)
        for _ in range(3):
            session.step()
        values.append(session.read())
        assert session.trace_count() == int(compiled)
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_a_wrong_compiled_model_is_refused(monkeypatch):
    wrong = lambda context, function, *state: lambda *batch: function(*batch) * 1.01  # noqa: E731
    monkeypatch.setattr(on_mlx.DeviceContext, "compiled", wrong)
    with pytest.raises(MeasurementError, match="compiled, the output differs by"):
        open_session("mlp", "inference", COMPILE="1")


# Devices


def test_a_build_for_cuda_without_a_card_uses_the_cpu(monkeypatch):
    monkeypatch.setattr(mx, "set_default_device", lambda device: None)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    for cards, expected in ((1, "cuda"), (0, "cpu")):
        monkeypatch.setattr(mx, "device_count", lambda kind, cards=cards: cards)
        assert on_mlx.choose_device(None) == expected
    with pytest.raises(SettingError, match="driver"):
        on_mlx.choose_device(True)


def test_a_gpu_is_checked_with_as_many_images_as_a_timed_batch(monkeypatch):
    sizes, right = set(), on_mlx_networks.ResNet.__call__
    monkeypatch.setattr(on_mlx_networks.ResNet, "__call__", lambda self, x: sizes.add(len(x)) or right(self, x))
    monkeypatch.setattr(on_mlx, "choose_device", lambda use_gpu: "mps")
    for phase in ("inference", "training"):
        assert open_session("image", phase, BATCH_SIZE="6").output_error < 1e-5
        assert {2, 6} <= sizes
        sizes.clear()


@pytest.mark.parametrize(("total", "own"), [(1.0, False), (0.5, True), (3.0, True)])
def test_a_card_whose_memory_is_the_systems_is_known(monkeypatch, total, own):
    info = {"device_name": "NVIDIA", "total_memory": total * psutil.virtual_memory().total}
    monkeypatch.setattr(mx, "device_info", lambda: info)
    monkeypatch.setattr(on_mlx, "choose_device", lambda use_gpu: "cuda")
    assert on_mlx.find_device(open_session.settings("mlp")).has_own_memory == own


def test_the_lines_of_make_best_for_ones_own_script_run():
    model, optimizer = nn.Linear(3, 2), on_mlx.OPTIMIZERS["sgd"](0.1)
    differentiate = nn.value_and_grad(model, lambda inputs: model(inputs).sum())

    def step(inputs):
        loss, gradients = differentiate(inputs)
        optimizer.update(model, gradients)
        return loss

    names = {"mx": mx, "model": model, "optimizer": optimizer, "step": step}
    settings = {"PRECISION": "bfloat16", "COMPILE": "1", "DEVICE": "cpu"}
    exec("\n".join(recipe.lines_of_code("mlx", settings)), names)
    before = np.array(model.weight.astype(mx.float32))
    mx.eval(names["step"](mx.ones((4, 3), mx.bfloat16)), names["state"])
    assert model.weight.dtype == mx.bfloat16
    assert not np.array_equal(before, np.array(model.weight.astype(mx.float32)))


# The same work as PyTorch's


COMPARED = ("resnet18", "resnet50", "mlp-64-32", *torch_reference.TINY, *torch_reference.TRAINED_DECODERS)
ADAPTERS = {"linear.weight": "projection.weight", "lora_a": "a", "lora_b": "b"}


def name_in_torch(names, model, torch):
    """Return {name of a weight here: its name in PyTorch}."""
    if model in torch_reference.TINY_DECODERS:
        known = re.compile(r"linear\.weight$|lora_[ab]$")
        return {name: "decoder." + known.sub(lambda found: ADAPTERS[found[0]], name) for name in names}
    theirs = [name for name in torch if not name.startswith("_") and "num_batches_tracked" not in name]
    return dict(zip(names, theirs, strict=True))


def as_ours(name, value):
    """A weight of PyTorch in MLX's layout."""
    if "lora" in name:
        return value.T
    return value.transpose(0, 2, 3, 1) if value.ndim == 4 else value


@pytest.mark.parametrize("model", COMPARED)
def test_equal_weights_give_equal_outputs_and_gradients_and_learn_the_same(reference, model):
    torch = reference(model)
    workload, settings = torch_reference.describe(model, FRAMEWORK="mlx", PHASE="training")
    session = on_mlx.open_session(workload, settings, "training", "device")
    ours = session.model
    old = dict(tree_flatten(ours.module.parameters()))
    theirs = name_in_torch(old, model, torch)
    copied = {name: mx.array(as_ours(name, torch[theirs[name]])) for name in old}
    assert [each.shape for each in copied.values()] == [each.shape for each in old.values()]
    ours.module.update(tree_unflatten(list(copied.items())))
    trained = [name for name, _ in tree_flatten(ours.module.trainable_parameters())]
    expected = [as_ours(name, torch[f"_gradient.{theirs[name]}"]) for name in trained]

    def stop_dropout():
        for layer in ours.module.modules():
            if isinstance(layer, nn.Dropout):
                layer._p_1 = 1.0

    assert_same_work(model, session, torch, expected, stop_dropout, on_mlx.leaves)


def test_an_update_of_adam_is_that_of_its_definition():
    session = open_session("mlp", "optimizer", OPTIMIZER="adam")
    session.prepare()
    model, before = session.model, np.array(session.model.last_weight)
    gradient = np.array(model.last_gradient)
    session.step()
    expected = before - 1e-5 * gradient / (np.abs(gradient) + 1e-8)
    np.testing.assert_allclose(np.array(model.last_weight), expected, rtol=1e-4, atol=1e-8)
    assert model.updates() == 1


def test_checkpointing_wraps_each_model_once(tiny_decoders, monkeypatch):
    """mlx-lm's grad_checkpoint() changes a class, and one process opens several sessions."""
    calls, right = [], llama.Attention.__call__
    monkeypatch.setattr(llama.Attention, "__call__", lambda *x: calls.append(1) or right(*x))
    counts = []
    for checkpointing in "110":
        session = open_llm("training", CHECKPOINTING=checkpointing)
        calls.clear()
        session.step()
        counts.append(len(calls))
    assert counts == [4, 4, 2]
