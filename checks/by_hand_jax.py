"""Loops that a careful JAX user would write, for `make selfcheck FRAMEWORK=jax`: an MLP without Keras."""

import functools
import itertools

from bench.frameworks.keras_jax_tf import on_jax  # first: it sets Keras's backend
from checks.selfcheck import block_of, check_loop

# isort: split
import jax
import jax.numpy as jnp


def checks():
    on_jax.choose_device(None)
    for phase in ("inference", "training"):
        block = loop(phase, *mlp())
        yield check_loop(phase, "mlp-5x1024", block, workload="mlp", DATA="synthetic", BATCH_SIZE="32")


def mlp():
    """Return (weights, their function, inputs, labels) of five hidden layers."""
    widths = (3072, *5 * [1024], 10)
    keys = jax.random.split(jax.random.key(0), len(widths))
    weights = [
        (jax.random.normal(key, shape) / shape[0] ** 0.5, jnp.zeros(shape[1]))
        for key, shape in zip(keys, itertools.pairwise(widths), strict=False)
    ]

    def predict(weights, x):
        for weight, bias in weights[:-1]:
            x = jnp.maximum(x @ weight + bias, 0)
        return x @ weights[-1][0] + weights[-1][1]

    return weights, predict, jax.random.normal(keys[-1], (32, 3072)), jnp.arange(32) % 10


def loop(phase, weights, predict, inputs, labels):
    """Return the block of steps as in JAX's guides; it ends with a read of the last result."""

    def loss_of(weights, inputs, labels):
        return -jax.nn.log_softmax(predict(weights, inputs))[jnp.arange(len(labels)), labels].mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def train(weights, inputs, labels):
        loss, gradients = jax.value_and_grad(loss_of)(weights, inputs, labels)
        return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, weights, gradients), loss

    infer = jax.jit(predict)

    def step():
        nonlocal weights
        if phase == "inference":
            return infer(weights, inputs)
        weights, loss = train(weights, inputs, labels)
        return loss

    return block_of(step, jax.block_until_ready, len(labels))
