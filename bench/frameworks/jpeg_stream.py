"""Check the batches that a pipeline prepares from JPEG files, against PIL and NumPy."""

import numpy as np
from PIL import Image

from bench.frameworks import check
from bench.workloads import data

MAX_PICTURE_ERROR = 0.3  # of a picture that another library has decoded and resized, relative L2


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
        expected = resize_and_cut(image, size)
        check.check_equal(picture, expected, MAX_PICTURE_ERROR, "a picture of the pipeline differs from its file")
    yield first, labels
    second, labels = next(batches)
    check.require(not np.array_equal(second, first), "two batches of the pipeline are equal")
    yield second, labels
    del first, second
    yield from batches


def resize_and_cut(image, size):
    """Prepare an image for inference as usual on ImageNet: short side 256 for 224 pixels, cut the middle, normalise."""
    scale = size * 256 // 224 / min(image.size)
    sides = [max(size, round(side * scale)) for side in image.size]
    left, top = ((side - size) // 2 for side in sides)
    image = image.resize(sides, Image.Resampling.BILINEAR)
    return normalise(image.crop((left, top, left + size, top + size)))


def normalise(image):
    mean, deviation = (np.array(each, np.float32) for each in (data.IMAGENET_MEAN, data.IMAGENET_STD))
    return (np.asarray(image, np.float32) / 255 - mean) / deviation
