"""Keras in TensorFlow or in JAX, as FRAMEWORK says, and the same numbers as PyTorch for the same weights."""

import os

from tests.conftest import GIVEN
from tests.conftest import TESTED as NAME

os.environ["KERAS_BACKEND"] = NAME

import keras
import numpy as np
import pytest

from tests.frameworks import torch_reference
from tests.frameworks.sessions import Opener, assert_same_work

open_session = Opener(NAME)


def test_mixed_float16_scales_the_loss():
    scaled, plain = (open_session(PRECISION=p) for p in ("mixed_float16", "float32"))
    assert float(scaled.model.optimizer.dynamic_scale) == 256
    changes = []
    for session in (scaled, plain):
        before = np.array([*session.model.trained_weights().values()][-1])
        session.step()
        changes.append(np.array([*session.model.trained_weights().values()][-1]) - before)
    np.testing.assert_allclose(*changes, rtol=0.02, atol=1e-7)


def copy_image(model, torch):
    for layer in model.layers:
        names = ("weight", "bias", "running_mean", "running_var")
        values = [torch[name] for name in (f"{layer.name}.{each}" for each in names) if name in torch]
        if values:  # kernels: height, width, inputs, outputs
            axes = (2, 3, 1, 0) if values[0].ndim == 4 else None
            layer.set_weights([values[0].transpose(axes), *values[1:]])


def copy_in_order(model, torch):
    """Copy weights whose order is PyTorch's."""
    for weight, value in zip(model.weights, torch.values(), strict=True):
        weight.assign((value.T if weight.name == "kernel" else value).reshape(weight.shape))


COMPARED = ("resnet18", "resnet50", "mlp-64-32", *torch_reference.TINY)


@pytest.mark.parametrize("model", COMPARED)
def test_equal_weights_give_equal_outputs_and_gradients_and_learn_the_same(reference, model):
    torch, copy = reference(model), copy_image if model.startswith("resnet") else copy_in_order
    workload, settings = torch_reference.describe(model, **GIVEN)
    session = open_session.framework.open_session(workload, settings, "device")
    ours = session.model
    weights = {name: value for name, value in torch.items() if not name.startswith("_")}
    copy(ours.keras_model, {name: torch.get(f"_gradient.{name}", value) for name, value in weights.items()})
    expected = [weight.numpy() for weight in ours.keras_model.trainable_weights]  # gradients in Keras's layout
    copy(ours.keras_model, weights)
    if NAME == "jax":  # its weights are not in the Keras model
        ours.trained = [each.value for each in ours.keras_model.trainable_variables]
        ours.others = [each.value for each in ours.keras_model.non_trainable_variables]

    def stop_dropout():
        for layer in ours.keras_model._flatten_layers():
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0

    assert_same_work(model, session, torch, expected, stop_dropout)
