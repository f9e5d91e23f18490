"""CIFAR-10 in the format of its archive, and downloads that fail."""

import functools
import hashlib
import io
import logging
import os
import tarfile

import numpy as np
import pytest

from bench.settings import SettingError
from bench.workloads import cifar10

NOWHERE = "http://127.0.0.1:1/cifar.tar.gz"  # nothing answers there
PER_FILE = 4  # images; the real archive has 10,000


def records(first_label):
    """Bytes of four images, each of one colour, with successive labels."""
    return b"".join(bytes([first_label + i]) + bytes([10 * i]) * cifar10.PIXELS for i in range(PER_FILE))


def test_an_archive_becomes_batches(tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        for name in (*cifar10.TRAIN, *cifar10.TEST):
            content = records(5 if name in cifar10.TEST else 0)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    md5 = hashlib.md5((tmp_path / "cifar.tar.gz").read_bytes(), usedforsecurity=False).hexdigest()
    load = functools.partial(cifar10.load, tmp_path, NOWHERE, f"md5:{md5}")
    train, train_labels, test, test_labels = load()
    assert (train.shape, train.dtype, test.shape) == ((20, 3072), np.uint8, (4, 3072))
    assert train_labels.tolist() == [0, 1, 2, 3] * 5
    assert test_labels.tolist() == [5, 6, 7, 8]
    assert train[:4, 0].tolist() == train[:4, -1].tolist() == [0, 10, 20, 30]
    monkeypatch.setattr(cifar10, "load", load)
    batches = cifar10.make_batches("cifar10", 3, seed=0)
    assert [(images.shape, images.dtype, labels.shape) for images, labels in batches] == [
        ((3, 3072), np.float32, (3,))
    ] * 4
    assert all((images[:, 0] * 255 / 10).round().tolist() == labels.tolist() for images, labels in batches)
    images, _ = cifar10.make_batches("cifar10", 40, seed=0)[0]  # more than there are
    assert len(images) == 40
    assert not np.array_equal(images[:20], images[20:])
    train, _, test, _ = cifar10.dataset.__wrapped__("cifar10", 0)
    assert (train.shape, test.shape, train.max()) == ((20, 3072), (4, 3072), np.float32(30 / 255))


def test_synthetic_images_replace_a_failed_download_with_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(cifar10, "load", functools.partial(cifar10.load, tmp_path, NOWHERE))
    cifar10.choose.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert cifar10.choose(None) == cifar10.choose(None) == "synthetic"
        assert len(caplog.text.splitlines()) == 1
        with pytest.raises(SettingError):
            cifar10.choose("cifar10")
    finally:
        cifar10.choose.cache_clear()
    assert list(tmp_path.glob("*.gz")) == []
    assert "DATA" not in os.environ
