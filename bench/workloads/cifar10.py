"""CIFAR-10 (Krizhevsky 2009) as NumPy arrays: downloaded once, checked by its MD5, kept in data/.

The binary version (https://www.cs.toronto.edu/~kriz/cifar.html), because the pickled one could run code when loaded.
Each image is one byte of label and 3 x 32 x 32 bytes of red, green and blue.
"""

import functools
import hashlib
import http.client
import logging
import os
import shutil
import ssl
import tarfile
import urllib.request
from pathlib import Path

import certifi
import numpy as np
from tqdm import tqdm

from bench.settings import SettingError
from bench.workloads import CIFAR10_FOLDER, CIFAR10_URL, CIFAR_CLASSES, CIFAR_SIDE, TEST_IMAGES, TRAIN_IMAGES
from bench.workloads.data import RESIDENT_BATCHES

log = logging.getLogger("bench")

MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
TIMEOUT_SECONDS = 10
PIXELS = 3 * CIFAR_SIDE**2  # bytes of one image
TRAIN = tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6))
TEST = ("cifar-10-batches-bin/test_batch.bin",)


class DataError(Exception):
    """CIFAR-10 is not available: one line with the reason."""


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
    except DataError as error:
        if data == "cifar10":
            raise SettingError(f"DATA='cifar10' is not available: {error}; DATA=synthetic needs no network") from None
        log.warning("WARNING: CIFAR-10 is not available (%s): measuring with synthetic images", error)
        os.environ["DATA"] = "synthetic"  # for child processes, so that none tries again
        return "synthetic"


def make_batches(data, batch_size, seed):
    """Return RESIDENT_BATCHES pairs (images, labels): float32 (batch_size, 3072) and int64 (batch_size,)."""
    images, labels = synthetic_images(RESIDENT_BATCHES * batch_size, seed) if data == "synthetic" else load()[:2]
    order = np.resize(np.random.default_rng(seed).permutation(len(images)), (RESIDENT_BATCHES, batch_size))
    return [(as_floats(images[batch]), labels[batch]) for batch in order]


@functools.cache
def dataset(data, seed):
    """Return (train images, train labels, test images, test labels): 50,000 and 10,000 images, float32 from 0 to 1."""
    if data == "synthetic":
        images, labels = synthetic_images(TRAIN_IMAGES + TEST_IMAGES, seed)
        train, train_labels = images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES]
        test, test_labels = images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:]
    else:
        train, train_labels, test, test_labels = load()
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
def load(folder=CIFAR10_FOLDER, url=CIFAR10_URL, md5=MD5):
    """Return (train images, train labels, test images, test labels), after downloading the archive if it is missing.

    Images are uint8 of shape (count, 3072): all red values, then green, then blue. Labels are int64.

    Raises:
        DataError: no network or a wrong MD5. No incomplete file is left behind.
    """
    path = Path(folder) / url.rpartition("/")[2]
    if not path.exists():
        fetch(url, path, md5)
    try:
        if md5_of(path) == md5:
            return read(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): delete it, then run again to download it") from None
    raise DataError(f"{path} is not the published file (wrong MD5): delete it, then run again to download it")


def fetch(url, path, md5):
    """Download a file; it is renamed to `path` only if it has the right MD5."""
    log.info("downloading CIFAR-10 (170 MB) to %s", path.parent)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    # On a Mac, Python from python.org does not find the system's certificates.
    trust = ssl.create_default_context(cafile=certifi.where())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS, context=trust) as reply, part.open("wb") as file:
            size = int(reply.headers.get("Content-Length") or 0) or None
            with tqdm.wrapattr(reply, "read", total=size, desc=f"downloading {url}", disable=None) as counted:
                shutil.copyfileobj(counted, file, 1 << 20)
        if md5_of(part) != md5:
            raise DataError(f"{url} did not send the whole published file (wrong MD5): try again")
        part.replace(path)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{url}: {getattr(error, 'reason', None) or error}") from None
    finally:
        part.unlink(missing_ok=True)


def md5_of(path):
    """Return the MD5 of a file as hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, functools.partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def read(path):
    """Read the archive in memory, without unpacking it to disk; returns what load() returns."""
    with tarfile.open(path, "r:gz") as archive:
        train, test = (b"".join(archive.extractfile(name).read() for name in names) for names in (TRAIN, TEST))
    return *split(train), *split(test)


def split(records):
    """Split records of one label byte and PIXELS image bytes into (images, labels)."""
    rows = np.frombuffer(records, np.uint8).reshape(-1, 1 + PIXELS)
    return rows[:, 1:], rows[:, 0].astype(np.int64)
