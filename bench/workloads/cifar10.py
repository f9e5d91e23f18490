"""CIFAR-10 (Krizhevsky 2009) as NumPy arrays: downloaded once, checked by its MD5, kept in data/.

The binary version (https://www.cs.toronto.edu/~kriz/cifar.html), because the pickled one could run code when loaded.
Each image is one byte of label and 3 x 32 x 32 bytes of red, green and blue.
"""

import functools
import logging
import math
import sys
import tarfile

import numpy as np
import pooch

from bench.settings import ROOT, SettingError
from bench.workloads import CIFAR_CLASSES, CIFAR_SIDE, TEST_IMAGES, TRAIN_IMAGES
from bench.workloads.data import RESIDENT_BATCHES

log = logging.getLogger("bench")

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
HASH = "md5:c32a1d4ab5d03f1284b67883e8d87530"
TIMEOUT_SECONDS = 10
PIXELS = 3 * CIFAR_SIDE**2  # bytes of one image
TRAIN = tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6))
TEST = ("cifar-10-batches-bin/test_batch.bin",)


@functools.cache
def choose(data):
    """Return the data to use, "cifar10" or "synthetic", for a value of DATA; None prefers cifar10.

    Raises:
        SettingError: DATA='cifar10' was set and CIFAR-10 is not available.
    """
    if data == "synthetic":
        return data
    try:
        load()
        return "cifar10"
    except (OSError, ValueError, tarfile.TarError) as error:  # no network, a wrong MD5, a full disk
        reason = " ".join(str(error).split())
        if data == "cifar10":
            raise SettingError(f"DATA='cifar10' is not available: {reason}; DATA=synthetic needs no network") from None
        log.warning("WARNING: CIFAR-10 is not available (%s): measuring with synthetic images", reason)
        return "synthetic"


def make_batches(data, batch_size, seed):
    """Return RESIDENT_BATCHES pairs (images, labels): float32 (batch_size, 3072) and int64 (batch_size,)."""
    images, labels = synthetic_images(RESIDENT_BATCHES * batch_size, seed) if data == "synthetic" else load()[:2]
    random, count = np.random.default_rng(seed), RESIDENT_BATCHES * batch_size
    passes = [random.permutation(len(images)) for _ in range(math.ceil(count / len(images)))]
    order = np.concatenate(passes)[:count].reshape(RESIDENT_BATCHES, batch_size)
    return [(as_floats(images[batch]), labels[batch]) for batch in order]


@functools.cache
def dataset(data, seed):
    """Return (train images, train labels, test images, test labels): 50,000 and 10,000 images, float32 from 0 to 1."""
    if data == "synthetic":
        images, labels = synthetic_images(TRAIN_IMAGES + TEST_IMAGES, seed)
        parts = images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES], images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:]
    else:
        parts = load()
    train, train_labels, test, test_labels = parts
    return as_floats(train), train_labels, as_floats(test), test_labels


def as_floats(images):
    return images.astype(np.float32) / 255


def synthetic_images(count, seed):
    """Make seeded (images, labels), uint8 (count, 3072) and int64, with a faint pattern of each class to learn."""
    random = np.random.default_rng(seed)
    patterns = 128 + 4 * random.standard_normal((CIFAR_CLASSES, PIXELS), dtype=np.float32)
    labels = random.integers(CIFAR_CLASSES, size=count)
    images = np.empty((count, PIXELS), np.uint8)
    for start in range(0, count, 1000):  # the noise of all images at once would take gigabytes
        part = slice(start, start + 1000)
        noise = random.standard_normal((len(labels[part]), PIXELS), dtype=np.float32)
        images[part] = np.clip(patterns[labels[part]] + 60 * noise, 0, 255)
    return images, labels


@functools.cache
def load(folder=ROOT / "data", url=URL, known_hash=HASH):
    """Return (train images, train labels, test images, test labels), downloaded if they are missing.

    Images are uint8 of shape (count, 3072), labels int64. Raises OSError without network, ValueError for a wrong hash.
    """
    download = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT_SECONDS)
    path = pooch.retrieve(url, known_hash, url.rpartition("/")[2], folder, downloader=download)
    with tarfile.open(path, "r:gz") as archive:  # in memory, without unpacking it to disk
        train, test = (b"".join(archive.extractfile(name).read() for name in names) for names in (TRAIN, TEST))
    tables = [np.frombuffer(records, np.uint8).reshape(-1, 1 + PIXELS) for records in (train, test)]
    return tuple(part for table in tables for part in (table[:, 1:], table[:, 0].astype(np.int64)))
