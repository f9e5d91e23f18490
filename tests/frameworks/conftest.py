"""ALIAS_DEVICE=cuda FRAMEWORK=torch pytest tests/frameworks: the same tests on a GPU that is not there."""

import os

import pytest


@pytest.fixture(autouse=True)
def alias(monkeypatch):
    if name := os.environ.get("ALIAS_DEVICE"):
        from tests.frameworks import alias_device

        alias_device.pretend(monkeypatch, name)
