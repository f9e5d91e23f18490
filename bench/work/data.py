"""The data that the work runs on, as NumPy arrays, the same in every framework."""

import atexit
import functools
import itertools
import math
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

# One repeated batch can be cached, by hardware or by a framework; four in rotation are not.
RESIDENT_BATCHES = 4
JPEG_FILES = 256
POOL_NUMBERS = 2**24
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def image_batches(shape, classes, batch_size, seed):
    """Seeded batches that stay on the device.

    Noise of the mean and spread of normalised photographs: zeros would run faster and draw less power.

    Args:
        shape: (channels, height, width).
        classes: labels are drawn from range(classes).
        batch_size: images in one batch.
        seed: the same seed gives the same batches.

    Returns:
        A list of (images, labels): float32 of shape (batch_size, *shape), int64 of shape (batch_size,).
    """
    random = np.random.default_rng(seed)
    return [
        (
            random.standard_normal((batch_size, *shape), dtype=np.float32),
            random.integers(classes, size=batch_size),
        )
        for _ in range(RESIDENT_BATCHES)
    ]


def token_batches(length, vocabulary, classes, batch_size, seed):
    """Seeded batches of token ids, none of them 0, which stands for padding.

    Returns:
        A list of (ids, labels): int64 of shapes (batch_size, length) and (batch_size,).
    """
    random = np.random.default_rng(seed)
    return [
        (random.integers(1, vocabulary, size=(batch_size, length)), random.integers(classes, size=batch_size))
        for _ in range(RESIDENT_BATCHES)
    ]


@functools.cache
def normal_pool(seed):
    return np.random.default_rng(seed).standard_normal(POOL_NUMBERS, dtype=np.float32)


def operand_sets(shapes, sets, seed):
    """Operands of one operator: a list of tuples of float32 arrays of these shapes, normal and of unit scale.

    All are cut from one pool of numbers, each at a place of its own, because billions of them would take minutes.
    """
    pool, starts = normal_pool(seed), itertools.count(0, 65_537)
    return [tuple(_cut(pool, next(starts) % (POOL_NUMBERS // 2), shape) for shape in shapes) for _ in range(sets)]


def _cut(pool, start, shape):
    # No more of the pool than it takes: resize() keeps all that it is given.
    return np.resize(pool[start : start + math.prod(shape)], shape)


def epoch_order(count, seed, epoch):
    """The order in which an epoch sees its items: int64 of shape (count,), the same in every framework."""
    return np.random.default_rng([seed, epoch]).permutation(count)


@functools.cache
def jpeg_files(seed):
    """Paths of the pool of JPEG files, written once and removed with the process."""
    folder = tempfile.TemporaryDirectory(prefix="jpegs-")
    atexit.register(folder.cleanup)
    return write_jpegs(folder.name, JPEG_FILES, seed)


def write_jpegs(folder, count, seed):
    """Write a pool of seeded JPEG files, random scenes of 200 to 500 pixels a side; returns their paths.

    Scenes, not noise: noise compresses badly and decodes several times slower than a photograph does.
    Soft gradients, a dozen shapes and a little sensor noise come to about two bits a pixel, as photographs do.
    """
    random = np.random.default_rng(seed)
    paths = [Path(folder) / f"{i:05}.jpg" for i in range(count)]
    for path in paths:
        random_scene(random).save(path, quality=90)
    return [str(path) for path in paths]


def random_scene(random):
    """A PIL image that costs a decoder and a resizer what a photograph costs."""
    width, height = (int(side) for side in random.integers(200, 501, size=2))
    coarse = Image.fromarray(random.integers(256, size=(6, 8, 3), dtype=np.uint8))
    scene = coarse.resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(scene)
    for _ in range(12):
        (left, right), (top, bottom) = (sorted(random.integers(side, size=2).tolist()) for side in (width, height))
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape((left, top, right, bottom), fill=tuple(random.integers(256, size=3).tolist()))
    noise = random.normal(scale=4, size=(height, width, 3))
    return Image.fromarray(np.clip(np.asarray(scene) + noise, 0, 255).astype(np.uint8))
