"""CIFAR-10 in the format of its archive, and a download that fails."""

import functools
import hashlib
import io
import tarfile

import numpy as np
import pytest

from bench.settings import SettingError
from bench.workloads import cifar10

NOWHERE = "http://127.0.0.1:1/cifar.tar.gz"  # nothing answers there


def test_an_archive_becomes_batches(tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        for name in (*cifar10.TRAIN, *cifar10.TEST):  # four images each, of one colour, with successive labels
            first = 5 if name in cifar10.TEST else 0
            content = b"".join(bytes([first + i]) + bytes([10 * i]) * cifar10.PIXELS for i in range(4))
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    md5 = hashlib.md5((tmp_path / "cifar.tar.gz").read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setattr(cifar10, "load", functools.partial(cifar10.load, tmp_path, NOWHERE, f"md5:{md5}"))
    train, train_labels, test, test_labels = cifar10.dataset.__wrapped__("cifar10", 0)
    assert (train.shape, train.dtype, test.shape) == ((20, 3072), np.float32, (4, 3072))
    assert (train_labels.tolist(), test_labels.tolist()) == ([0, 1, 2, 3] * 5, [5, 6, 7, 8])
    assert (255 * train[:4, [0, -1]]).round().tolist() == [[0, 0], [10, 10], [20, 20], [30, 30]]
    for size in (3, 40):  # of 20 images
        batches = cifar10.make_batches("cifar10", size, seed=0)
        assert [(images.shape, images.dtype) for images, _ in batches] == [((size, 3072), np.float32)] * 4
        assert all((images[:, 0] * 255 / 10).round().tolist() == labels.tolist() for images, labels in batches)


def test_without_a_network_synthetic_images_are_measured_unless_cifar10_was_asked_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(cifar10, "load", functools.partial(cifar10.load, tmp_path, NOWHERE))
    assert cifar10.choose.__wrapped__(None) == "synthetic"
    assert "synthetic" in caplog.text
    with pytest.raises(SettingError, match="DATA=synthetic"):
        cifar10.choose.__wrapped__("cifar10")
    assert list(tmp_path.glob("*.gz")) == []
