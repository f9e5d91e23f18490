"""The program on a device whose speed is known: known_cases.py, in a process of its own."""

import subprocess
import sys

import pytest

from tests.frameworks import known_device


@pytest.mark.skipif(not known_device.IS_AVAILABLE, reason="PyTorch before 2.15 has no devices in Python")
def test_what_is_measured_on_a_known_device_is_true():
    command = [sys.executable, "-m", "tests.frameworks.known_device", "tests/frameworks/known_cases.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
