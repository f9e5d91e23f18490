"""Single operators as work: matrix products, convolutions, and arrays that are moved; NumPy alone."""

import math
from dataclasses import replace

import numpy as np

from bench.work import data
from bench.work.workload import Workload

# Operands take turns; together they are more than any last-level cache holds, if so few can be.
CACHE_BYTES = 2**28
MIN_SETS, MAX_SETS = 2, 16
SAMPLES = 64  # entries of an output that are compared with float64
COPY_NUMBERS = 2**26  # float32, 256 MiB in each array
BANDWIDTHS = {"copy": lambda x: x, "add": lambda x, y: x + y, "multiply-add": lambda x, y: 2 * x + y}


def name_size(size):
    return "x".join(map(str, size))


def operator(model, name, unit, items, flops, shapes, samples, columns=None):
    """The Workload of one operator on float32 operands of these shapes."""
    sets = min(MAX_SETS, max(MIN_SETS, math.ceil(CACHE_BYTES / sum(4 * math.prod(shape) for shape in shapes))))
    return Workload(
        name=name,
        model=model,
        unit=unit,
        items_per_step=items,
        item_shape=(),
        classes=0,
        parameters=None,
        flops_per_item=flops,
        batches=lambda _, seed: data.operand_sets(shapes, sets, seed),
        columns={"data": "synthetic"} | (columns or {}),
        samples=samples,
    )


def matmul(size):
    """M x K times K x N: 2 M N K FLOPs."""
    m, n, k = size
    columns = {"matrix_size": name_size(size)}
    return operator("matmul", "matmul", "products", 1, 2 * m * n * k, ((m, k), (k, n)), sample_product, columns)


def convolution_as_product(size):
    """The same product as a convolution of 1 x 1: M pixels of K channels become M pixels of N channels."""
    m, n, k = size
    height = math.gcd(m, 2 ** (m.bit_length() // 2))
    shapes = (1, k, height, m // height), (n, k, 1, 1)
    columns = {"matrix_size": name_size(size), "memory_format": "channels_last", "batch_size": 1}
    return operator("conv1x1", "convolution", "products", 1, 2 * m * n * k, shapes, sample_convolution, columns)


def convolution(device):
    """The ancestor's: 3 x 3, 128 channels, images of 256 x 256; 2 x 9 x 128 x 128 FLOPs a pixel."""
    batch_size, channels, side = 4 if device == "cpu" else 32, 128, 256
    flops = 2 * 9 * channels * channels * side * side
    shapes = (batch_size, channels, side, side), (channels, channels, 3, 3)
    columns = {"image_size": side, "memory_format": "channels_last", "batch_size": batch_size}
    return operator("conv3x3", "convolution", "images", batch_size, flops, shapes, sample_convolution, columns)


def bandwidth(model, formula):
    """Moves arrays: as many GB as its operands have, the output being the last of them."""
    arrays = formula.__code__.co_argcount + 1
    gigabytes = arrays * 4 * COPY_NUMBERS / 1e9

    def samples(operands):
        (places,) = draw_places(operands[0].shape)
        return (places,), formula(*(each[places].astype(np.float64) for each in operands[:-1]))

    shapes = ((COPY_NUMBERS,),) * arrays
    return replace(operator(model, "bandwidth", "GB", gigabytes, None, shapes, samples), flops_per_item=None)


# Every output is compared with float64 at some places before it is timed.


def draw_places(shape):
    return tuple(np.random.default_rng(0).integers(side, size=SAMPLES) for side in shape)


def sample_product(operands):
    a, b = operands
    rows, columns = draw_places((len(a), b.shape[1]))
    return (rows, columns), np.einsum("sk,sk->s", a[rows].astype(np.float64), b[:, columns].T.astype(np.float64))


def sample_convolution(operands):
    """Convolution of stride 1 with zeros around the image, at some places."""
    x, kernel = operands
    reach = kernel.shape[-1] // 2
    batch, out, row, column = places = draw_places((len(x), len(kernel), *x.shape[2:]))
    total = np.zeros(SAMPLES)
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            y, z = row + dy, column + dx
            inside = (y >= 0) & (y < x.shape[2]) & (z >= 0) & (z < x.shape[3])
            pixels = x[batch, :, y.clip(0, x.shape[2] - 1), z.clip(0, x.shape[3] - 1)].astype(np.float64)
            weights = kernel[out, :, dy + reach, dx + reach].astype(np.float64)
            total += inside * np.einsum("sc,sc->s", pixels, weights)
    return places, total
