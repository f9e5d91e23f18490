"""A workload that is not a classifier: a record, and a builder for each framework.

From noisy numbers and the number of a noise level, the model predicts the noise: two inputs, and a mean-squared error.
"""

import numpy as np

from bench.workloads.workload import Workload

LEVELS, WIDTH = 10, 6


def denoiser_workload(settings):
    return Workload(
        name="denoiser",
        model="tiny",
        unit="samples",
        items_per_step=settings.batch_size,
        make_batches=make_batches,
        loss="mean_squared_error",
        sizes=(LEVELS, WIDTH),
        parameters=LEVELS * WIDTH + (WIDTH + 1) * WIDTH,
    )


def make_batches(batch_size, seed):
    """Make seeded batches (noisy, level, noise): float32 (batch_size, 6), int64 (batch_size,), float32 as the first."""
    random, shape = np.random.default_rng(seed), (batch_size, WIDTH)
    return [
        (
            random.standard_normal(shape, dtype=np.float32),
            random.integers(LEVELS, size=batch_size),
            random.standard_normal(shape, dtype=np.float32),
        )
        for _ in range(4)
    ]


def build_torch(workload):
    import torch

    class Denoiser(torch.nn.Module):
        def __init__(self, levels, width):
            super().__init__()
            self.levels, self.output = torch.nn.Embedding(levels, width), torch.nn.Linear(width, width)

        def forward(self, noisy, level):
            return self.output(torch.tanh(noisy + self.levels(level)))

    return Denoiser(*workload.sizes)


def build_keras(workload):
    import keras

    levels, width = workload.sizes
    noisy, level = keras.Input((width,)), keras.Input((), dtype="int32")
    x = keras.ops.tanh(noisy + keras.layers.Embedding(levels, width)(level))
    return keras.Model([noisy, level], keras.layers.Dense(width)(x))


def build_mlx(workload):
    import mlx.core as mx
    from mlx import nn

    class Denoiser(nn.Module):
        def __init__(self, levels, width):
            super().__init__()
            self.levels, self.output = nn.Embedding(levels, width), nn.Linear(width, width)

        def __call__(self, noisy, level):
            return self.output(mx.tanh(noisy + self.levels(level)))

    return Denoiser(*workload.sizes)


BUILDERS = {
    "torch": build_torch,
    "tensorflow": build_keras,
    "jax": build_keras,
    "mlx": build_mlx,
}
