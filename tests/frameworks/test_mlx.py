"""What is special to MLX: steps that evaluate everything, its networks, and the same numbers as PyTorch."""

import io
import re

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten

from bench import precision as precision_module
from bench.frameworks.apple_mlx import on_mlx
from bench.timing import MeasurementError
from tests.conftest import GIVEN
from tests.frameworks import torch_reference
from tests.frameworks.sessions import Opener, assert_same_work, measure_and_check, open_llm

open_session = Opener("mlx")


def count_pending(*trees):
    """How many operators of these arrays' graphs are not evaluated."""
    graph = io.StringIO()
    mx.export_to_dot(graph, *(each for _, each in tree_flatten(trees) if isinstance(each, mx.array)))
    return graph.getvalue().count("[label")


@pytest.mark.parametrize(
    ("script", "phase", "produced"),
    [
        ("mlp", "inference", lambda session: session.last_result),
        ("image", "training", lambda session: [session.model.loss, session.model.state]),
        ("llm", "decode", lambda session: [session.last_result, [layer.state for layer in session.model.cache]]),
    ],
)
def test_a_step_leaves_nothing_unevaluated_and_looks_for_no_weight(monkeypatch, script, phase, produced):
    session = open_llm(phase) if script == "llm" else open_session(script, phase, OPTIMIZER="adam")
    monkeypatch.setattr(session.model, "trained_weights", None)
    for _ in range(2):
        session.step()
        assert count_pending(produced(session)) == 0


COMPARED = ("resnet18", "resnet50", "mlp-64-32", *torch_reference.TINY, *torch_reference.TRAINED_DECODERS)
ADAPTERS = {"linear.weight": "projection.weight", "lora_a": "lora_a", "lora_b": "lora_b"}


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
    workload, settings = torch_reference.describe(model, **GIVEN)
    session = on_mlx.open_session(workload, settings, "device")
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

    assert_same_work(model, session, torch, expected, stop_dropout)


def test_a_wrong_kernel_is_wrong_output(monkeypatch):
    right = mx.quantized_matmul
    monkeypatch.setattr(precision_module, "_probed", {})
    wrong = lambda x, weights, scales, biases, **how: right(x, weights, 2 * scales, biases, **how)  # noqa: E731
    monkeypatch.setattr(mx, "quantized_matmul", wrong)
    with pytest.raises(MeasurementError, match="quantised"):
        measure_and_check(open_llm("decode", PRECISION="bfloat16", WEIGHT_BITS="4"))
