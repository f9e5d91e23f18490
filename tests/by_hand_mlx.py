"""Loops that a careful MLX user would write, for `make selfcheck FRAMEWORK=mlx`."""

import itertools
import os
import statistics
import time

import mlx.core as mx
from mlx import nn, optimizers

from bench.frameworks import on_mlx, on_mlx_networks
from bench.workloads.operators import MAX_SETS
from tests.selfcheck import check_loops, check_matmul, is_one

MODEL, SIDE = "resnet18", 32  # MLX's build for Linux CPUs would take minutes for larger images


def checks():
    device = on_mlx.choose_device(None)
    yield check_matmul(matmul, side=256 if device == "cpu" else 1024)
    for phase in ("inference", "training"):
        yield check_loops(phase, MODEL, {"a hand-written loop": (loop(phase), is_one)}, IMAGE_SIZE=str(SIDE))


def matmul(side):
    """Gives block(runs) -> matmuls a second; the median of runs that each wait for the device."""
    sets = itertools.cycle([[mx.random.normal((side, side)) for _ in range(2)] for _ in range(MAX_SETS)])

    def read_clock():
        a, b = next(sets)
        start = time.perf_counter()
        mx.eval(a @ b)
        return time.perf_counter() - start

    return lambda runs: 1 / statistics.median(read_clock() for _ in range(runs))


def loop(phase):
    """Steps as in MLX's documentation: value_and_grad, update, eval of the model's and the optimizer's state."""
    batch_size = int(os.environ.get("BATCH_SIZE", 4))
    model = on_mlx_networks.ResNet(*on_mlx_networks.RESNETS[MODEL], classes=1000)
    model.train(phase == "training")
    images, labels = mx.random.normal((batch_size, SIDE, SIDE, 3)), mx.random.randint(0, 1000, (batch_size,))
    optimizer = optimizers.SGD(0.01)
    differentiate = nn.value_and_grad(model, lambda x, y: nn.losses.cross_entropy(model(x), y, reduction="mean"))
    mx.eval(model.parameters(), images, labels)

    def infer():
        mx.async_eval(model(images))

    def train():
        loss, gradients = differentiate(images, labels)
        optimizer.update(model, gradients)
        mx.async_eval(loss, model.state, optimizer.state)

    step = train if phase == "training" else infer

    def read_clock(steps):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        mx.synchronize()
        return (time.perf_counter() - start) / steps

    def block(readings, steps):
        read_clock(2)
        return batch_size / statistics.median(read_clock(steps) for _ in range(readings))

    return block
