"""CIFAR-10 (Krizhevsky 2009) as NumPy arrays: downloaded once, checked by its MD5, kept in data/.

The binary version (https://www.cs.toronto.edu/~kriz/cifar.html), because the pickled one could run code when loaded.
Each image is one byte of label and 3 x 32 x 32 bytes of red, green and blue.
"""

import functools
import logging
import sys
import tarfile

import numpy as np
import pooch

from bench.settings import ROOT, SettingError
from bench.workloads.data import RESIDENT_BATCHES

log = logging.getLogger("bench")

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
HASH = "md5:c32a1d4ab5d03f1284b67883e8d87530"
SIDE = 32
PIXELS = 3 * SIDE**2  # bytes of one image
CLASSES = 10
TRAIN_IMAGES = 50_000
TEST_IMAGES = 10_000
TRAIN = tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6))
TEST = ("cifar-10-batches-bin/test_batch.bin",)


@functools.cache
def choose(data):
    """Return the data to use: a value of DATA, or without one cifar10, or synthetic if that is not available."""
    try:
        if data != "synthetic":
            load()
        return data or "cifar10"
    except SettingError as error:
        if data:
            raise
        log.warning("WARNING: %s; measuring synthetic images", error)
        return "synthetic"


def make_batches(data, batch_size, seed):
    """Return RESIDENT_BATCHES pairs (images, labels): float32 (batch_size, 3072) and int64 (batch_size,)."""
    shape = (RESIDENT_BATCHES, batch_size)
    images, labels = synthetic_images(RESIDENT_BATCHES * batch_size, seed) if data == "synthetic" else load()[:2]
    order = np.resize(np.random.default_rng(seed).permutation(len(images)), shape)  # repeats them if there are too few
    return [(as_floats(images[batch]), labels[batch]) for batch in order]


@functools.cache
def dataset(data, seed):
    """Return (train images, train labels, test images, test labels): 50,000 and 10,000 images, float32 from 0 to 1."""
    if data == "synthetic":
        images, labels = synthetic_images(TRAIN_IMAGES + TEST_IMAGES, seed)
        parts = images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES], images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:]
    else:
        parts = load()
    return tuple(as_floats(part) if part.dtype == np.uint8 else part for part in parts)


def as_floats(images):
    return images.astype(np.float32) / 255


def synthetic_images(count, seed):
    """Make seeded (images, labels), uint8 (count, 3072) and int64, with a faint pattern of each class to learn."""
    random = np.random.default_rng(seed)
    patterns = random.integers(16, size=(CLASSES, PIXELS), dtype=np.uint8)
    labels = random.integers(CLASSES, size=count)
    return random.integers(240, size=(count, PIXELS), dtype=np.uint8) + patterns[labels], labels


@functools.cache
def load(folder=ROOT / "data", url=URL, known_hash=HASH):
    """Return (train images, train labels, test images, test labels), downloaded if they are missing.

    Images are uint8 of shape (count, 3072), labels int64.

    Raises:
        SettingError: CIFAR-10 is not available: no network, a wrong MD5, a full disk.
    """
    try:
        path = pooch.retrieve(url, known_hash, url.rpartition("/")[2], folder, progressbar=sys.stderr.isatty())
        with tarfile.open(path, "r:gz") as archive:  # in memory, without unpacking it to disk
            train, test = (b"".join(archive.extractfile(name).read() for name in names) for names in (TRAIN, TEST))
    except (OSError, ValueError, tarfile.TarError) as error:
        reason = " ".join(str(error).split())
        raise SettingError(f"DATA='cifar10' is not available ({reason}): set DATA=synthetic") from None
    tables = [np.frombuffer(records, np.uint8).reshape(-1, 1 + PIXELS) for records in (train, test)]
    return tuple(part for table in tables for part in (table[:, 1:], table[:, 0].astype(np.int64)))
