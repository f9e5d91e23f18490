"""Loops that a careful JAX user would write, for `make selfcheck FRAMEWORK=jax`: ResNet-50 in Keras, an MLP without."""

import functools
import itertools
import os

from bench.frameworks import on_jax  # first: it sets Keras's backend
from bench.workloads.operators import MAX_SETS
from tests.selfcheck import block_of, check_loops, check_matmul, is_one

# isort: split
import jax
import jax.numpy as jnp

from bench.frameworks import keras_networks


def checks():
    on_jax.choose_device(None)
    yield check_matmul(matmul)
    for phase in ("inference", "training"):
        by_hand = {"a hand-written loop": (loop(phase, *mlp()), is_one)}
        yield check_loops(phase, "mlp-5x1024", by_hand, script="mlp", DATA="synthetic", BATCH_SIZE="32")
    for phase in ("inference", "training"):
        yield check_loops(phase, "resnet50", {"a hand-written loop": (loop(phase, *resnet50()), is_one)})


def matmul(side):
    keys = jax.random.split(jax.random.key(0), 2 * MAX_SETS)
    matrices = [jax.random.normal(key, (side, side)) for key in keys]
    sets = itertools.cycle(zip(matrices[::2], matrices[1::2], strict=True))
    return block_of(lambda: jnp.matmul(*next(sets)), jax.block_until_ready)


def mlp():
    """Return (weights, other state, their function, inputs, labels) of five hidden layers, without Keras."""
    widths = (3072, *5 * [1024], 10)
    keys = jax.random.split(jax.random.key(0), len(widths))
    weights = [
        (jax.random.normal(key, shape) / shape[0] ** 0.5, jnp.zeros(shape[1]))
        for key, shape in zip(keys, itertools.pairwise(widths), strict=False)
    ]

    def predict(weights, others, x, training):
        for weight, bias in weights[:-1]:
            x = jnp.maximum(x @ weight + bias, 0)
        return x @ weights[-1][0] + weights[-1][1], others

    return weights, [], predict, jax.random.normal(keys[-1], (32, 3072)), jnp.arange(32) % 10


def resnet50():
    """Return the same for ResNet-50 in Keras's layers."""
    model = keras_networks.build_resnet("resnet50", (224, 224, 3), 1000)
    state = [
        [variable.value for variable in each] for each in (model.trainable_variables, model.non_trainable_variables)
    ]
    batch_size = int(os.environ.get("BATCH_SIZE", 4))
    images = jax.random.normal(jax.random.key(0), (batch_size, 224, 224, 3))
    return *state, model.stateless_call, images, jnp.arange(batch_size)


def loop(phase, weights, others, predict, inputs, labels):
    """Return the block of steps as in JAX's guides; it ends with a read of the last result."""
    state = weights, others

    def loss_of(weights, others, inputs, labels):
        logits, others = predict(weights, others, inputs, training=True)
        return -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].mean(), others

    @functools.partial(jax.jit, donate_argnums=0)
    def train(state, inputs, labels):
        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(*state, inputs, labels)
        weights = jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, state[0], gradients)
        return (weights, others), loss

    infer = jax.jit(lambda state, inputs: predict(*state, inputs, training=False)[0])

    def step():
        nonlocal state
        if phase == "inference":
            return infer(state, inputs)
        state, loss = train(state, inputs, labels)
        return loss

    return block_of(step, jax.block_until_ready, len(labels))
