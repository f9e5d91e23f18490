"""Single operators as workloads: matmuls, convolutions, memory bandwidth. Needs NumPy only."""

import math

import numpy as np

from bench.workloads import data
from bench.workloads.workload import Workload

# Steps rotate through several sets of operands, together twice a last-level cache of 256 MiB even in 16 bits. Matmuls
# that are smaller than 4096 x 4096 would need more than MAX_SETS: their operands may fit into a large cache.
CACHE_BYTES = 2**29
MIN_SETS = 2
MAX_SETS = 16
SAMPLES = 64  # values of an output that are compared with exact ones
COPY_VALUES = 2**26  # float32, 256 MiB in each array
EIGHT_BITS = ("int8", "float8_e4m3")
CONVOLUTION = {"name": "convolution", "has_convolutions": True}
BANDWIDTHS = {"copy": lambda x: x, "add": lambda x, y: x + y, "triad": lambda x, y: 2 * x + y}  # STREAM's names


def operator(model, shapes, samples, *, precision="float32", product=None, columns=None, **fields):
    """Build the Workload of one operator on operands of these shapes.

    Args:
        product: (M, N, K), if it does the work of a matmul of M x K by K x N: 2 M N K FLOPs.
        fields: fields of the Workload, if they are not those of a matmul.
    """
    columns = {"data": "synthetic"} | (columns or {})
    if product:
        columns["matrix_size"] = "x".join(map(str, product))
        fields["flops_per_item"] = 2 * math.prod(product)
    values = sum(map(math.prod, shapes))
    sets = min(MAX_SETS, max(MIN_SETS, math.ceil(CACHE_BYTES / (2 * values))))
    return Workload(
        model=model,
        samples=samples,
        columns=columns,
        make_batches=lambda _, seed: data.operand_sets(shapes, sets, precision, seed),
        resident_bytes=4 * sets * values,  # an upper limit: normal values are float32
        **({"name": "matmul", "unit": "matmuls", "items_per_step": 1} | fields),
    )


def matmul(size, precision="float32"):
    """Build a matmul; with 8 bits the second matrix is stored as N x K, as weights are."""
    m, n, k = size
    if precision not in EIGHT_BITS:
        return operator("matmul", ((m, k), (k, n)), sample_matmul, product=size)
    samples = lambda x: sample_matmul((x[0], x[1].T))  # noqa: E731
    return operator("matmul-8bit", ((m, k), (n, k)), samples, product=size, precision=precision)


def convolution_1x1(size):
    """Build a matmul as a 1 x 1 convolution: M pixels with K channels become M pixels with N channels."""
    m, n, k = size
    height = math.gcd(m, 2 ** (m.bit_length() // 2))
    shapes = (1, k, height, m // height), (n, k, 1, 1)
    columns = {"memory_format": "channels_last", "batch_size": 1}
    return operator("conv1x1", shapes, sample_convolution, product=size, columns=columns, **CONVOLUTION)


def convolution_3x3(device):
    """Build the 3 x 3 convolution of tf-metal-experiments: 128 channels, 2 x 9 x 128 x 128 FLOPs per pixel."""
    batch = 4 if device == "cpu" else 32
    shapes = (batch, 128, 256, 256), (128, 128, 3, 3)
    columns = {"image_size": 256, "memory_format": "channels_last", "batch_size": batch}
    fields = CONVOLUTION | {"unit": "images", "items_per_step": batch, "flops_per_item": 2 * 9 * 128**2 * 256**2}
    return operator("conv3x3", shapes, sample_convolution, columns=columns, **fields)


def bandwidth(model, formula):
    """Build an elementwise operator; a step moves the bytes of the formula's arguments and of its result."""
    arrays = formula.__code__.co_argcount + 1

    def samples(operands):
        *inputs, output = operands
        places = random_indices(len(output))
        return places, formula(*(x[places].astype(np.float64) for x in inputs))

    step = {"unit": "GB", "items_per_step": arrays * 4 * COPY_VALUES / 1e9}
    return operator(model, tuple((COPY_VALUES,) for _ in range(arrays)), samples, name="bandwidth", **step)


def list_others(device, side):
    """Return what a sweep measures besides matmuls and convolutions, as {name in OPS: [(Workload, precision)]}.

    Each list is measured up to its first failure. Matmuls of 8 bits are compared with bfloat16 of the same size.
    """
    size = (side, side, side)
    # On a large card 4096 is 0.79 of the best that others find.
    larger = [(matmul((2 * side,) * 3, "float8_e4m3"), "float8_e4m3")] if device != "cpu" else []
    return {
        "bandwidth": [(bandwidth(*item), "float32") for item in BANDWIDTHS.items()],
        "int8": [(matmul(size, "int8"), "int8"), (matmul(size), "bfloat16")],
        "float8": [(matmul(size, "float8_e4m3"), "float8_e4m3"), (matmul(size), "bfloat16"), *larger],
    }


def random_indices(*sides):
    """Draw the places of an output of these sides at which its values are compared with exact ones."""
    return tuple(np.random.default_rng(0).integers(side, size=SAMPLES) for side in sides)


def sample_matmul(operands):
    """Return (indices, values) of a matmul, in float64; of integers the values are int64."""
    a, b = operands
    rows, columns = random_indices(len(a), b.shape[1])
    wide = np.int64 if a.dtype == np.int8 else np.float64
    return (rows, columns), np.einsum("sk,sk->s", a[rows].astype(wide), b[:, columns].T.astype(wide))


def sample_convolution(operands):
    """Return (indices, values) of a convolution with stride 1 that keeps the image size, without places at its edge."""
    x, kernel = operands
    size = kernel.shape[-1]
    images, channels, tops, lefts = random_indices(len(x), len(kernel), *(side - size + 1 for side in x.shape[2:]))
    values = [
        np.sum(x[image, :, top : top + size, left : left + size].astype(np.float64) * kernel[channel])
        for image, channel, top, left in zip(images, channels, tops, lefts, strict=True)
    ]
    return (images, channels, tops + size // 2, lefts + size // 2), np.array(values)
