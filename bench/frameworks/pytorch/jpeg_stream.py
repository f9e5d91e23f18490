"""Check a pipeline after it was timed: the JPEG files exchange their names, and its pictures must follow.

PIL and NumPy prepare the expected pictures.
"""

import os
import shutil

import numpy as np
from PIL import Image

from bench.timing import proof
from bench.workloads import data

COMPARED_PICTURES = 64  # after the files have exchanged their names, so that a cache of few files is noticed
# Relative L2 error of a picture. PIL and torchvision differ by at most 0.008 in 4,800 pictures of 32 to 224 pixels. One
# that was decoded at half of its size differs by 0.005 to 0.27 at 32 pixels, and by 0.03 to 0.21 at 224.
MAX_PICTURE_ERROR = 0.03
# Mean distance between the normalised colours of a random cut and the nearest ones of its file: at most 0.12 in 1,080
# cuts. One of another file has more than the limit in 95 % of the cases, in the median 0.3.
MAX_COLOUR_DISTANCE = 0.15
STRANGE_SHARE = 0.05  # of cuts that may be farther away: one alone proves nothing
CUT_PIXELS = 256  # whose colours are compared
FILE_PIXELS = 8192
LEAST_DIFFERENT = 0.6  # share of the pictures that are of different files, if their order is random


def exchange_names(paths):
    """Give each file the name of the one before it. Every name always has a file, because workers may be reading."""
    copies = [f"{path}.next" for path in paths]
    for path, copy in zip([*paths[1:], paths[0]], copies, strict=True):
        shutil.copyfile(path, copy)
    for copy, path in zip(copies, paths, strict=True):
        os.replace(copy, path)


def check_pictures(batches, paths, size, phase, queued):
    """Exchange the files' names; raise MeasurementError unless pictures are then those of their files, and differ.

    In training nobody knows the cut, so only its colours are compared: a file that is decoded at a smaller size passes.

    Args:
        batches: yields (pictures in NumPy (items, 3, size, size), the places of their files in `paths`).
        queued: how many of them may have been read before.
    """
    exchange_names(paths)
    for _ in range(queued):
        next(batches)
    pairs = []
    while len(pairs) < COMPARED_PICTURES:
        pictures, places = next(batches)
        apart = max(1, len(places) // COMPARED_PICTURES)  # some from everywhere in a large batch
        pairs += zip(pictures[::apart], places[::apart], strict=True)
    different = len({int(place) for _, place in pairs}) / len(pairs)
    words = "of the pipeline's pictures are of different files"
    proof.require(different >= LEAST_DIFFERENT, f"only {different:.0%} {words}")
    distances = []
    for picture, place in pairs:
        image = Image.open(paths[int(place)]).convert("RGB")
        picture = picture.transpose(1, 2, 0)
        if phase == "training":
            distances.append(colour_distance(picture, normalise(image)))
        else:
            expected = resize_and_cut(image, size)
            proof.check_equal(picture, expected, MAX_PICTURE_ERROR, "a picture of the pipeline differs from its file")
    strange = sum(distance > MAX_COLOUR_DISTANCE for distance in distances) / len(pairs)
    proof.require(
        strange <= STRANGE_SHARE, f"{strange:.0%} of the pipeline's pictures have other colours than their files"
    )


def colour_distance(cut, whole):
    """Return the mean distance of colours of an image from the nearest one of another, both (height, width, 3)."""
    random = np.random.default_rng(0)
    ours, known = (each.reshape(-1, 3).astype(np.float32) for each in (cut, whole))
    ours = ours[random.integers(len(ours), size=CUT_PIXELS)]
    known = known[random.integers(len(known), size=FILE_PIXELS)]
    squares = np.square(ours).sum(1)[:, np.newaxis] + np.square(known).sum(1) - 2 * ours @ known.T
    return np.sqrt(np.maximum(squares.min(1), 0)).mean()


def resize_and_cut(image, size):
    """Prepare an image for inference as usual on ImageNet: short side 256 for 224 pixels, cut the middle, normalise.

    Sides and cut are rounded as torchvision rounds them.
    """
    short = size * 256 // 224
    sides = [short if side == min(image.size) else int(short * side / min(image.size)) for side in image.size]
    left, top = (round((side - size) / 2) for side in sides)
    image = image.resize(sides, Image.Resampling.BILINEAR)
    return normalise(image.crop((left, top, left + size, top + size)))


def normalise(image):
    mean, deviation = (np.array(each, np.float32) for each in (data.IMAGENET_MEAN, data.IMAGENET_STD))
    return (np.asarray(image, np.float32) / 255 - mean) / deviation
