"""Input data as NumPy arrays, the same for every framework."""

import atexit
import functools
import math
import shutil
import tempfile

import numpy as np
from PIL import Image, ImageDraw

RESIDENT_BATCHES = 4  # take turns, because hardware or framework may cache a single one
PREFETCH = 2  # batches that a worker of a pipeline may hold ready, the default of PyTorch's DataLoader
JPEG_FILES = 256
POOL_NUMBERS = 2**24
POOL_STRIDE = 65_537  # between the starts of two arrays: odd, so that none begins in the same column as another
RECENT_POOLS = 2  # that are kept: `make tflops` measures its peak with another seed
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@functools.lru_cache(RECENT_POOLS)
def normal_pool(seed):
    return np.random.default_rng(seed).standard_normal(POOL_NUMBERS, dtype=np.float32)


@functools.lru_cache(RECENT_POOLS)
def int8_pool(seed):
    return np.random.default_rng(seed).integers(-127, 128, POOL_NUMBERS, dtype=np.int8)


@functools.lru_cache(RECENT_POOLS)
def float8_pool(seed):
    """Round normal_pool() to numbers of float8 e4m3: of four significant bits, and multiples of 2**-9."""
    pool = normal_pool(seed)
    step = np.ldexp(np.float32(1), np.maximum(np.frexp(pool)[1], -5) - 4)
    return np.round(pool / step) * step


def operand_sets(shapes, sets, seed, pool=normal_pool):
    """Yield the operands of an operator: `sets` tuples of arrays with these shapes, from a pool of numbers.

    By default they are float32, normal with unit variance. Each array is cut from its own offset in the pool, because
    generating billions of numbers would take minutes.
    """
    start = 0
    for _ in range(sets):
        operands = []
        for shape in shapes:
            # Slice first: the result of resize() keeps a reference to its whole argument.
            operands.append(np.resize(pool(seed)[start : start + math.prod(shape)], shape))
            start = (start + POOL_STRIDE) % (POOL_NUMBERS // 2)
        yield tuple(operands)


def epoch_order(count, seed, epoch):
    """Return the order of the items in an epoch: int64 of shape (count,), the same in every framework."""
    return np.random.default_rng([seed, epoch]).permutation(count)


@functools.cache
def jpeg_files(seed):
    """Write JPEG_FILES files once and return their paths; they are removed when the process ends."""
    # A TemporaryDirectory would be removed by a worker that is forked: Python 3.13 clears the functions at exit there.
    folder = tempfile.mkdtemp(prefix="jpegs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_jpegs(folder, JPEG_FILES, seed)


def write_jpegs(folder, count, seed):
    """Write seeded JPEG files, random scenes with sides of 200 to 500 pixels; return their paths.

    They are stored as most of ImageNet's: quality 96, colours not subsampled. Noise would decode several times slower
    than a photograph. These scenes (soft gradients, a dozen shapes, grain, a little sensor noise) take about as many
    bits a pixel and as long as photographs do (docs/method-details.md).
    """
    random = np.random.default_rng(seed)
    paths = [f"{folder}/{i:05}.jpg" for i in range(count)]
    for path in paths:
        width, height = (int(side) for side in random.integers(200, 501, size=2))
        coarse = Image.fromarray(random.integers(256, size=(6, 8, 3), dtype=np.uint8))
        scene = coarse.resize((width, height), Image.Resampling.BICUBIC)
        draw = ImageDraw.Draw(scene)
        for _ in range(12):
            (left, right), (top, bottom) = (sorted(random.integers(side, size=2).tolist()) for side in (width, height))
            shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
            shape((left, top, right, bottom), fill=tuple(random.integers(256, size=3).tolist()))
        noise = 1.5 * random.standard_normal((height, width, 3), dtype=np.float32)
        grain = Image.fromarray(8 * random.standard_normal((height // 2, width // 2), dtype=np.float32))
        noise += np.asarray(grain.resize((width, height), Image.Resampling.BICUBIC))[..., np.newaxis]
        noisy = np.clip(np.asarray(scene) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(path, quality=96, subsampling=0)
    return paths
