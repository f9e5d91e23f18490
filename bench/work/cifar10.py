"""CIFAR-10 (Krizhevsky 2009) as NumPy arrays: fetched once, proved by its checksum, kept in data/.

Its binary version is read (https://www.cs.toronto.edu/~kriz/cifar.html): each image is a byte of label and
3 x 32 x 32 bytes of red, green and blue, so that nothing in the archive can be a program, as a pickle could.
"""

import functools
import hashlib
import http.client
import logging
import os
import ssl
import tarfile
import urllib.request
import zlib
from pathlib import Path

import certifi
import numpy as np
from tqdm import tqdm

from bench.settings import ROOT, SettingError
from bench.work.data import RESIDENT_BATCHES

log = logging.getLogger("bench")

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
FOLDER = ROOT / "data"
TIMEOUT_SECONDS = 10
PIXELS, CLASSES = 3 * 32 * 32, 10
INSIDE = "cifar-10-batches-bin"
TRAIN = tuple(f"{INSIDE}/data_batch_{i}.bin" for i in range(1, 6))
TEST = (f"{INSIDE}/test_batch.bin",)
MEMBERS = {*TRAIN, *TEST, INSIDE, f"{INSIDE}/batches.meta.txt", f"{INSIDE}/readme.html"}


class DataError(Exception):
    """CIFAR-10 cannot be had: one line with the reason."""


@functools.cache
def choose(data):
    """ "cifar10" or "synthetic", for what DATA asks; the images are at hand then.

    Raises:
        SettingError: DATA='cifar10' and it cannot be had; where DATA is not set there is a warning instead.
    """
    if data == "synthetic":
        return data
    try:
        load()
        return "cifar10"
    except DataError as error:
        if data == "cifar10":
            raise SettingError(f"DATA='cifar10' cannot be had: {error}; DATA=synthetic needs no network") from None
        log.warning("WARNING: CIFAR-10 cannot be had (%s): measuring with synthetic images", error)
        return "synthetic"


def batches(data, batch_size, seed):
    """Batches that stay on the device: a list of (images, labels), float32 (batch_size, 3072) and int64."""
    count = RESIDENT_BATCHES * batch_size
    images, labels = synthetic_images(count, seed) if data == "synthetic" else load()[:2]
    chosen = np.resize(np.random.default_rng(seed).permutation(len(images)), (RESIDENT_BATCHES, batch_size))
    return [(as_floats(images[some]), labels[some]) for some in chosen]


@functools.cache
def dataset(data, seed):
    """(train images, train labels, test images, test labels): 50,000 and 10,000, images as float32 in 0 to 1."""
    if data == "synthetic":
        images, labels = synthetic_images(60_000, seed)
        train, train_labels, test, test_labels = images[:50_000], labels[:50_000], images[50_000:], labels[50_000:]
    else:
        train, train_labels, test, test_labels = load()
    return as_floats(train), train_labels, as_floats(test), test_labels


def as_floats(images):
    return images.astype(np.float32) / 255


def synthetic_images(count, seed):
    """Seeded images that can be learnt, (uint8 (count, 3072), int64 (count,)): a faint pattern a class, under noise."""
    random = np.random.default_rng(seed)
    patterns = 128 + 4 * random.standard_normal((CLASSES, PIXELS), dtype=np.float32)
    labels = random.integers(CLASSES, size=count)
    images = np.empty((count, PIXELS), np.uint8)
    for start in range(0, count, 1000):  # all at once, the noise would take gigabytes
        some = slice(start, start + 1000)
        noise = random.standard_normal((len(labels[some]), PIXELS), dtype=np.float32)
        images[some] = np.clip(patterns[labels[some]] + 60 * noise, 0, 255)
    return images, labels


@functools.cache
def load(folder=FOLDER, url=URL, md5=MD5):
    """(train images, train labels, test images, test labels) out of the archive, fetched if it is not there.

    Images are uint8 of shape (count, 3072), all red, then all green, then all blue values; labels int64.

    Raises:
        DataError: no network, a wrong checksum, an archive of another format. No broken file is left behind.
    """
    path = Path(folder) / url.rpartition("/")[2]
    if not path.exists():
        fetch(url, path, md5)
    elif md5_of(path) != md5:
        raise DataError(f"{path} is not the published file (MD5): delete it, and it will be fetched again")
    return read(path)


def fetch(url, path, md5):
    """Download a file; it appears under its name only when it is complete and its checksum is right."""
    log.info("fetching CIFAR-10 (170 MB) into %s", path.parent)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            download(url, file)
        if md5_of(part) != md5:
            raise DataError(f"{url} gave another file than the published one (MD5)")
        part.replace(path)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{url}: {getattr(error, 'reason', None) or error}") from None
    finally:
        part.unlink(missing_ok=True)


def download(url, file):
    # Of the system's own certificates a python.org Python on a Mac finds none.
    trust = ssl.create_default_context(cafile=certifi.where())
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS, context=trust) as reply:
        size = int(reply.headers.get("Content-Length") or 0)
        with tqdm(desc=f"fetching {url}", total=size or None, unit="B", unit_scale=True, disable=None) as bar:
            while chunk := reply.read(1 << 20):
                file.write(chunk)
                bar.update(len(chunk))
        file.flush()
        if size and file.tell() != size:
            raise DataError(f"{url} ended after {file.tell()} of {size} bytes: try again")


def md5_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, functools.partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def read(path):
    """What load() returns, out of an archive. Its members are read by name, and nothing is unpacked to the disk."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            odd = sorted({member.name for member in archive.getmembers()} - MEMBERS)
            if odd:
                raise DataError(f"{path} has a member that does not belong there: {odd[0]}")
            train, test = ([archive.extractfile(name).read() for name in names] for names in (TRAIN, TEST))
    except (tarfile.TarError, zlib.error, EOFError, KeyError, OSError, AttributeError) as error:
        raise DataError(f"{path} cannot be read ({error}): delete it, and it will be fetched again") from None
    return *_split(path, train), *_split(path, test)


def _split(path, files):
    data = np.frombuffer(b"".join(files), np.uint8)
    if not data.size or data.size % (1 + PIXELS):
        raise DataError(f"{path} does not hold images of {PIXELS} bytes and a label")
    rows = data.reshape(-1, 1 + PIXELS)
    if rows[:, 0].max() >= CLASSES:
        raise DataError(f"{path} has a label that is not from 0 to {CLASSES - 1}")
    return rows[:, 1:], rows[:, 0].astype(np.int64)
