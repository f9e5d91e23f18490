"""Batches from JPEG files in NumPy, which threads prepare with PIL, for TensorFlow, JAX and MLX.

PIL decodes and resizes without Python's global lock. JAX and MLX come without a pipeline. TensorFlow has
tf.data, but uses this one too, so that the same code prepares the same images in all three.
"""

import itertools
import math
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from bench.frameworks import base, check
from bench.workloads import data

MAX_PICTURE_ERROR = 0.3  # of a picture that another library has decoded and resized, relative L2
READY = 2  # batches that may be ready; those in the workers' hands come on top


def open_stream(workload, settings, phase):
    """Return the Stream of batches (images with channels first in float32, labels)."""
    paths = data.jpeg_files(settings.seed)
    workers = settings.num_workers
    size = workload.sizes.side
    classes = workload.sizes.classes
    ahead = READY + math.ceil(workers / workload.items_per_step) if workers else 0
    prepare = cut_at_random if phase == "training" else resize_and_cut

    random = np.random.default_rng(settings.seed)
    orders = (random.permutation(len(paths)) for _ in itertools.count())
    items = enumerate(int(number) for order in orders for number in order)  # the place in the stream seeds the cut

    def load(place, item):
        seed, number = item
        with Image.open(paths[number]) as image:
            place[:] = prepare(image.convert("RGB"), size, np.random.default_rng(seed))

    def batches():
        pool = ThreadPoolExecutor(max(1, workers))
        begun = deque()
        try:
            while True:
                while len(begun) < max(1, ahead):
                    images = np.empty((workload.items_per_step, size, size, 3), np.float32)
                    chosen = list(itertools.islice(items, len(images)))
                    waiting = (pool.map if workers else map)(load, images, chosen)
                    begun.append((images, [number % classes for _, number in chosen], waiting))
                images, labels, waiting = begun.popleft()
                list(waiting)  # raises what a worker raised
                yield images.transpose(0, 3, 1, 2), np.array(labels)
        finally:
            pool.shutdown(cancel_futures=True)

    return base.Stream(check_batches(batches(), paths, size, phase), workers, ahead)


def check_batches(batches, paths, size, phase):
    """Yield batches of pictures with `size` pixels a side, whose labels are places in `paths`.

    Raises:
        MeasurementError: `wrong_output`: the first picture is not that of its file, or the second batch is the first.
    """
    first, labels = next(batches)
    picture = np.asarray(first[0]).transpose(1, 2, 0)
    image = Image.open(paths[int(labels[0])]).convert("RGB")
    if phase == "training":  # nobody knows its cut, but it has the file's colours
        colours = normalise(image)
        is_right = picture.std() > 0 and colours.min() - 0.1 < picture.min() and picture.max() < colours.max() + 0.1
        check.require(is_right, "a picture of the pipeline has other colours than its file")
    else:
        expected = resize_and_cut(image, size, None)
        check.check_equal(picture, expected, MAX_PICTURE_ERROR, "a picture of the pipeline differs from its file")
    yield first, labels
    second, labels = next(batches)
    check.require(not np.array_equal(second, first), "two batches of the pipeline are equal")
    yield second, labels
    del first, second
    yield from batches


def resize_and_cut(image, size, random):
    """Prepare an image for inference as usual on ImageNet: short side 256 for 224 pixels, cut the middle, normalise."""
    scale = size * 256 // 224 / min(image.size)
    sides = [max(size, round(side * scale)) for side in image.size]
    left, top = ((side - size) // 2 for side in sides)
    image = image.resize(sides, Image.Resampling.BILINEAR)
    return normalise(image.crop((left, top, left + size, top + size)))


def cut_at_random(image, size, random):
    """Prepare an image for training as usual on ImageNet: cut 8 to 100 % of the area, mirror at random, normalise."""
    width = height = math.inf
    while width > image.width or height > image.height:
        area = image.width * image.height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = (max(1, round(math.sqrt(each))) for each in (area * ratio, area / ratio))
    left, top = random.integers(image.width - width + 1), random.integers(image.height - height + 1)
    cut = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    return normalise(cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else cut)


def normalise(image):
    mean, deviation = (np.array(each, np.float32) for each in (data.IMAGENET_MEAN, data.IMAGENET_STD))
    return (np.asarray(image, np.float32) / 255 - mean) / deviation
