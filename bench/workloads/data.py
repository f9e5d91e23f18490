"""Input data as NumPy arrays, the same for every framework."""

import atexit
import functools
import itertools
import math
import os
import shutil
import tempfile

import numpy as np
from PIL import Image, ImageDraw

from bench.host.ranks import read_ranks
from bench.process import SCRATCH

RESIDENT_BATCHES = 4  # take turns, because hardware or framework may cache a single one
PREFETCH = 2  # batches that a worker of a pipeline may hold ready, the default of PyTorch's DataLoader
POOL_VALUES = 2**24
POOL_STRIDE = 65_537  # between the starts of two arrays: odd, so that none begins in the same column as another
MOST_VALUES = 2**24 - 3  # that are drawn for a batch of images: a prime, so that no two images of a batch are equal
SHARE = 0.5**0.5  # the noise's and the colour's: each has half of the variance
CLASSES = 1000  # as in ImageNet
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@functools.lru_cache(2)  # `make tflops` measures its peak with another seed
def draw_pool(precision, seed):
    """Draw POOL_VALUES values: normal float32, those of float8 e4m3 among them, or int8 from -127 to 127."""
    random = np.random.default_rng(seed)
    if precision == "int8":
        return random.integers(-127, 128, POOL_VALUES, dtype=np.int8)
    pool = random.standard_normal(POOL_VALUES, dtype=np.float32)
    if precision != "float8_e4m3":
        return pool
    step = np.ldexp(np.float32(1), np.maximum(np.frexp(pool)[1], -5) - 4)  # four significant bits, multiples of 2**-9
    return np.round(pool / step) * step


def operand_sets(shapes, sets, precision, seed):
    """Generate the operands of an operator: `sets` tuples of arrays with these shapes, from draw_pool().

    Each array is cut from its own offset in the pool, because generating billions of values would take minutes.
    """
    starts = itertools.count(0, POOL_STRIDE)

    def cut(shape):
        start = next(starts) % (POOL_VALUES // 2)
        # Slice first: the result of resize() keeps a reference to its whole argument.
        return np.resize(draw_pool(precision, seed)[start : start + math.prod(shape)], shape)

    return (tuple(map(cut, shapes)) for _ in range(sets))


def image_batches(side, batch_size, seed):
    """Yield seeded (images, labels): float32 of shape (batch_size, 3, side, side), int64 of shape (batch_size,).

    Images are normal noise with a brightness and a colour of each, of mean 0 and variance 1, as normalised photographs.
    Zeros would run faster and draw less power; outputs for pure noise would hardly differ, by 2 % in a ResNet-50. In a
    large batch the noise repeats, at other places of each image, because drawing it would take seconds.
    """
    random = np.random.default_rng(seed)
    shape = (batch_size, 3, side, side)
    for _ in range(RESIDENT_BATCHES):
        values = random.standard_normal(min(math.prod(shape), MOST_VALUES), dtype=np.float32)
        images = np.resize(values, shape)
        images *= SHARE
        images += SHARE * random.standard_normal((batch_size, 3, 1, 1), dtype=np.float32)
        yield images, random.integers(CLASSES, size=batch_size)


def token_batches(vocab_size, target, length, batch_size, seed):
    """Make seeded batches of random tokens: [(ids,)], int64 of shape (batch_size, length), or [(ids, targets)].

    target: None; "next", the token after each, for a language model; or a number of classes, a label of each sequence.
    """
    random = np.random.default_rng(seed)
    shape = (batch_size, length + (target == "next"))
    drawn = [random.integers(1, vocab_size, size=shape) for _ in range(RESIDENT_BATCHES)]  # 0 may mean padding
    if target == "next":
        return [(np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])) for ids in drawn]
    return [(ids, random.integers(target, size=batch_size)) if target else (ids,) for ids in drawn]


def epoch_order(count, seed, epoch):
    """Return the order of the items in an epoch: int64 of shape (count,), the same in every framework."""
    return np.random.default_rng([seed, epoch]).permutation(count)


@functools.cache
def jpeg_files(seed, count=256):
    """Write seeded JPEG files once, random scenes with sides of 200 to 500 pixels, and return their paths.

    They are stored as most of ImageNet's: quality 96, colours not subsampled. Noise would decode several times slower
    than a photograph. These scenes (soft gradients, a dozen shapes, grain, a little sensor noise) take about as many
    bits a pixel and as long as photographs do (docs/method-details.md). They are removed when the process ends.
    """
    # A TemporaryDirectory would be removed by a worker that is forked: Python 3.13 clears the functions at exit there.
    # If this process, or its torchrun, is killed, the parent removes the folder.
    child = os.getppid() if read_ranks().are_many else os.getpid()
    folder = tempfile.mkdtemp(prefix=SCRATCH.format(child))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
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
