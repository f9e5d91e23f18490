"""Single operators as workloads: matmuls, convolutions, memory bandwidth, all-reduce. Needs NumPy only."""

import math
from dataclasses import replace

import numpy as np

from bench.workloads import data
from bench.workloads.workload import Workload

# Steps rotate through several sets of operands, together larger than a last-level cache even in 16 bits. Matmuls of
# less than 2048 x 2048 would need more than MAX_SETS: their operands may fit into a large cache.
CACHE_BYTES = 2**28
MIN_SETS, MAX_SETS = 2, 16
SMALLEST_NUMBER = 2  # bytes
SAMPLES = 64  # output entries that are compared with float64
COPY_NUMBERS = 2**26  # float32, 256 MiB in each array
BANDWIDTHS = {"copy": lambda x: x, "add": lambda x, y: x + y, "triad": lambda x, y: 2 * x + y}  # STREAM's names


def name_size(size):
    return "x".join(map(str, size))


def operator(model, name, shapes, samples, *, items=1, unit="matmuls", flops=None, **columns):
    """Build the Workload of one operator on float32 operands of these shapes."""
    bytes_per_set = SMALLEST_NUMBER * sum(map(math.prod, shapes))
    sets = min(MAX_SETS, max(MIN_SETS, math.ceil(CACHE_BYTES / bytes_per_set)))
    return Workload(
        name=name,
        model=model,
        unit=unit,
        items_per_step=items,
        make_batches=lambda _, seed: data.operand_sets(shapes, sets, seed),
        flops_per_item=flops,
        columns={"data": "synthetic"} | columns,
        samples=samples,
    )


def matmul(size):
    """Build an M x K by K x N matmul: 2 M N K FLOPs."""
    m, n, k = size
    shapes = (m, k), (k, n)
    return operator("matmul", "matmul", shapes, sample_matmul, flops=2 * m * n * k, matrix_size=name_size(size))


def convolution_1x1(size):
    """Build a matmul as a 1 x 1 convolution: M pixels with K channels become M pixels with N channels."""
    m, n, k = size
    height = math.gcd(m, 2 ** (m.bit_length() // 2))
    shapes = (1, k, height, m // height), (n, k, 1, 1)
    columns = {"matrix_size": name_size(size), "memory_format": "channels_last", "batch_size": 1}
    return operator("conv1x1", "convolution", shapes, sample_convolution, flops=2 * m * n * k, **columns)


def convolution_3x3(device):
    """Build the 3 x 3 convolution of tf-metal-experiments: 128 channels, 2 x 9 x 128 x 128 FLOPs per pixel."""
    batch, channels, side = 4 if device == "cpu" else 32, 128, 256
    shapes = (batch, channels, side, side), (channels, channels, 3, 3)
    work = {"items": batch, "unit": "images", "flops": 2 * 9 * channels * channels * side * side}
    columns = {"image_size": side, "memory_format": "channels_last", "batch_size": batch}
    return operator("conv3x3", "convolution", shapes, sample_convolution, **work, **columns)


def bandwidth(model, formula):
    """Build an elementwise operator; a step moves the bytes of the formula's arguments and of its result."""
    arrays = formula.__code__.co_argcount + 1

    def samples(operands):
        *inputs, output = operands
        (indices,) = random_indices(output.shape)
        return (indices,), formula(*(x[indices].astype(np.float64) for x in inputs))

    gigabytes = arrays * 4 * COPY_NUMBERS / 1e9
    return operator(model, "bandwidth", ((COPY_NUMBERS,),) * arrays, samples, items=gigabytes, unit="GB")


def all_reduce(size, rank, ranks):
    """Build the sum of `size` bytes of float32 over all ranks; its GB/s are nccl-tests' algorithm bandwidth.

    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    numbers = size // 4
    total = ranks * (ranks + 1) / 2  # rank r holds the same numbers times r + 1

    def make_batches(_, seed):
        return [(data.operand_sets(((numbers,),), 1, 0)[0][0] * np.float32(rank + 1),)]

    def samples(operands):
        (indices,) = random_indices((numbers,))
        return (indices,), operands[0][indices].astype(np.float64) / (rank + 1) * total

    columns = {"items": size / 1e9, "unit": "GB", "message_bytes": size}
    return replace(operator("all-reduce", "all-reduce", ((numbers,),), samples, **columns), make_batches=make_batches)


# Expected float64 values at random indices of the output, which are checked before anything is timed.


def random_indices(shape):
    return tuple(np.random.default_rng(0).integers(side, size=SAMPLES) for side in shape)


def sample_matmul(operands):
    """Return (indices, values) of a matmul."""
    a, b = operands
    rows, columns = random_indices((len(a), b.shape[1]))
    return (rows, columns), np.einsum("sk,sk->s", a[rows].astype(np.float64), b[:, columns].T.astype(np.float64))


def sample_convolution(operands):
    """Return (indices, values) of a convolution with stride 1 and zero padding that keeps the image size."""
    x, kernel = operands
    reach = kernel.shape[-1] // 2
    batch, out, row, column = indices = random_indices((len(x), len(kernel), *x.shape[2:]))
    total = np.zeros(SAMPLES)
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            y, z = row + dy, column + dx
            inside = (y >= 0) & (y < x.shape[2]) & (z >= 0) & (z < x.shape[3])
            pixels = x[batch, :, y.clip(0, x.shape[2] - 1), z.clip(0, x.shape[3] - 1)].astype(np.float64)
            weights = kernel[out, :, dy + reach, dx + reach].astype(np.float64)
            total += inside * np.einsum("sc,sc->s", pixels, weights)
    return indices, total
