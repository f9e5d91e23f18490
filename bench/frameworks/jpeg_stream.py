"""Batches from JPEG files in NumPy, which threads prepare with PIL, for frameworks without a pipeline of their own.

PIL decodes and resizes without Python's global lock.
"""

import itertools
import math
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from bench.frameworks import base
from bench.workloads import data

READY = 2  # batches that may be ready, as in the other frameworks; the workers' own come on top


def open_stream(workload, settings, phase):
    """Return the Stream of batches (images with channels first in float32, labels)."""
    paths, workers = data.jpeg_files(settings.seed), settings.num_workers
    size, classes = workload.sizes.side, workload.sizes.classes
    ahead = READY + math.ceil(workers / workload.items_per_step) if workers else 0
    prepare = cut_at_random if phase == "training" else resize_and_cut

    def load(images, place, number, seed):
        with Image.open(paths[number]) as image:
            images[place] = prepare(image.convert("RGB"), size, np.random.default_rng(seed))

    def begin_batch(submit):
        """Return (images, labels, what to wait for) of a batch whose images may not be there yet."""
        images = np.empty((workload.items_per_step, size, size, 3), np.float32)
        chosen = list(itertools.islice(numbers, len(images)))
        waiting = [submit(load, images, place, *each) for place, each in enumerate(chosen)]
        return images, np.array([number % classes for number, _ in chosen]), waiting

    def batches():
        pool = ThreadPoolExecutor(max(1, workers))
        submit = pool.submit if workers else lambda work, *arguments: work(*arguments)
        begun = deque()
        try:
            while True:
                while len(begun) < max(1, ahead):
                    begun.append(begin_batch(submit))
                images, labels, waiting = begun.popleft()
                for each in filter(None, waiting):
                    each.result()  # raises what a worker raised
                yield images.transpose(0, 3, 1, 2), labels
        finally:
            pool.shutdown(cancel_futures=True)

    numbers = shuffled(len(paths), settings.seed)
    return base.Stream(batches(), workers, ahead)


def shuffled(count, seed):
    """Yield (number, seed of its transforms) of all files in a random order, again and again."""
    random = np.random.default_rng(seed)
    while True:
        yield from ((int(number), int(random.integers(2**63))) for number in random.permutation(count))


def resize_and_cut(image, size, random):
    """Prepare an image for inference as usual on ImageNet: short side 256 for 224 pixels, cut the middle, normalise."""
    scale = size * 256 // 224 / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return normalise(
        image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    )


def cut_at_random(image, size, random):
    """Prepare an image for training as usual on ImageNet: cut 8 to 100 % of the area, mirror at random, normalise."""
    sides = None
    while sides is None or sides[0] > image.width or sides[1] > image.height:
        area = image.width * image.height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        sides = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
    width, height = sides
    left, top = random.integers(image.width - width + 1), random.integers(image.height - height + 1)
    cut = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    return normalise(cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else cut)


def normalise(image):
    mean, deviation = (np.array(each, np.float32) for each in (data.IMAGENET_MEAN, data.IMAGENET_STD))
    return (np.asarray(image, np.float32) / 255 - mean) / deviation
