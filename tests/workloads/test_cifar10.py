"""CIFAR-10 from a server on this machine: the real format, and everything that can be wrong with a download."""

import functools
import hashlib
import io
import logging
import os
import ssl
import tarfile
import threading
import urllib.request
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
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def refusal(*arguments):
    with pytest.raises(cifar10.DataError) as error:
        cifar10.load(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


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


@pytest.mark.parametrize(
    ("how", "said"), [({"content": b"half of it", "size": 10**6}, "wrong MD5"), ({"status": 404}, "Not Found")]
)
def test_a_broken_download_leaves_nothing_behind(serve, tmp_path, how, said):
    good = archive()
    assert said in refusal(tmp_path, serve(**{"content": good} | how), md5(good))
    assert list(tmp_path.iterdir()) == []


def test_no_network_and_a_changed_file_are_refused(tmp_path):
    missing = (tmp_path, "http://127.0.0.1:1/cifar.tar.gz", "0" * 32)
    assert "Connection refused" in refusal(*missing)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "cifar.tar.gz").write_bytes(b"half of it")
    assert "(wrong MD5): delete it" in refusal(*missing)
    (tmp_path / "cifar.tar.gz").unlink()
    (tmp_path / "cifar.tar.gz").mkdir()
    assert "cannot be read (Is a directory): delete it" in refusal(*missing)


def test_certificates_are_verified(monkeypatch, tmp_path):
    seen = []

    def urlopen(url, timeout, context):
        seen.append((url.partition(":")[0], context.verify_mode, context.check_hostname))
        assert len(context.get_ca_certs()) > 50
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    refusal(tmp_path)
    assert seen == [("https", ssl.CERT_REQUIRED, True)]


@pytest.fixture
def no_network(monkeypatch):
    def fail(*_):
        raise cifar10.DataError("no network")

    monkeypatch.setattr(cifar10, "load", fail)
    cifar10.choose.cache_clear()
    yield
    cifar10.choose.cache_clear()


def test_synthetic_images_replace_missing_ones_with_a_warning(no_network, caplog):
    with caplog.at_level(logging.WARNING):
        assert cifar10.choose("synthetic") == "synthetic"
        assert not caplog.text
        assert cifar10.choose(None) == "synthetic"
    assert "WARNING: CIFAR-10 is not available (no network)" in caplog.text
    assert os.environ["DATA"] == "synthetic"  # so that no child process tries again


def test_cifar10_is_never_replaced_where_it_was_asked_for(no_network):
    with pytest.raises(SettingError, match=r"DATA='cifar10'.*no network.*DATA=synthetic"):
        cifar10.choose("cifar10")


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
