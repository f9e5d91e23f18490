"""CIFAR-10 from a server on this machine: the real format, and downloads that fail."""

import functools
import hashlib
import io
import logging
import os
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from bench.settings import SettingError
from bench.workloads import cifar10

PER_FILE = 4  # images; the real archive has 10,000


def records(first_label):
    """Bytes of four images, each of one colour, with successive labels."""
    return b"".join(bytes([first_label + i]) + bytes([10 * i]) * cifar10.PIXELS for i in range(PER_FILE))


def archive():
    """A tar.gz in the real format."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in (*cifar10.TRAIN, *cifar10.TEST):
            content = records(5 if name in cifar10.TEST else 0)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def serve():
    """Serves bytes at a URL on this machine; size is the length that the server announces."""
    servers = []

    def start(content, size=None, status=200):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.send_header("Content-Length", str(size or len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *words):
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/cifar.tar.gz"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def md5(content):
    return "md5:" + hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_an_archive_is_downloaded_once_and_read(serve, tmp_path):
    good = archive()
    url = serve(good)
    train, train_labels, test, test_labels = cifar10.load(tmp_path, url, md5(good))
    assert (train.shape, train.dtype, test.shape) == ((20, 3072), np.uint8, (4, 3072))
    assert train_labels.tolist() == [0, 1, 2, 3] * 5
    assert test_labels.tolist() == [5, 6, 7, 8]
    assert train[:4, 0].tolist() == train[:4, -1].tolist() == [0, 10, 20, 30]
    cifar10.load.cache_clear()
    kept = (tmp_path / "cifar.tar.gz").stat().st_mtime_ns
    cifar10.load(tmp_path, url, md5(good))
    assert [(path.name, path.stat().st_mtime_ns) for path in tmp_path.iterdir()] == [("cifar.tar.gz", kept)]


@pytest.mark.parametrize("how", [{}, {"content": b"half of it", "size": 10**6}, {"status": 404}])
def test_synthetic_images_replace_a_failed_download_with_one_warning(serve, tmp_path, monkeypatch, caplog, how):
    url = serve(**{"content": b"something else"} | how)
    monkeypatch.setattr(cifar10, "load", functools.partial(cifar10.load.__wrapped__, tmp_path, url, md5(archive())))
    environ = dict(os.environ)
    cifar10.choose.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert cifar10.choose("synthetic") == "synthetic"
            assert not caplog.text
            assert cifar10.choose(None) == cifar10.choose(None) == "synthetic"
        assert len(caplog.text.splitlines()) == 1
        with pytest.raises(SettingError, match=r"^DATA='cifar10'.*DATA=synthetic") as error:
            cifar10.choose("cifar10")
        assert "\n" not in str(error.value)
    finally:
        cifar10.choose.cache_clear()
    assert list(tmp_path.iterdir()) == []
    assert dict(os.environ) == environ  # what the user set stays what the user set


def test_the_real_images_become_batches(serve, tmp_path, monkeypatch):
    good = archive()
    loaded = functools.partial(cifar10.load, tmp_path, serve(good), md5(good))
    monkeypatch.setattr(cifar10, "load", loaded)
    batches = cifar10.make_batches("cifar10", 3, seed=0)
    assert [(images.shape, images.dtype, labels.shape) for images, labels in batches] == [
        ((3, 3072), np.float32, (3,))
    ] * 4
    assert all((images[:, 0] * 255 / 10).round().tolist() == labels.tolist() for images, labels in batches)
    assert len(cifar10.make_batches("cifar10", 50, seed=0)[0][1]) == 50  # more than there are images
    train, train_labels, test, _ = cifar10.dataset.__wrapped__("cifar10", 0)
    assert (train.shape, test.shape, train.max()) == ((20, 3072), (4, 3072), np.float32(30 / 255))
    assert train_labels.dtype == np.int64


def test_synthetic_images_are_seeded_and_a_model_can_learn_them():
    images, labels = cifar10.synthetic_images(3000, seed=1)
    again, _ = cifar10.synthetic_images(3000, seed=1)
    other, _ = cifar10.synthetic_images(3000, seed=2)
    assert np.array_equal(images, again)
    assert not np.array_equal(images, other)
    # The mean image of each class in the first two thirds classifies the last third.
    train, rest = images[:2000].astype(np.float32), images[2000:].astype(np.float32)
    means = np.stack([train[labels[:2000] == label].mean(0) for label in range(10)])
    nearest = ((rest[:, None] - means) ** 2).sum(2).argmin(1)
    assert (nearest == labels[2000:]).mean() > 0.5
