"""PyTorch's CUDA build on a card made of software: cases.py, in a process of its own."""

import subprocess
import sys

import pytest

from tests.card import machines


@pytest.mark.skipif(bool(machines.explain_missing()), reason=machines.explain_missing())
def test_what_a_process_can_show_on_a_card(tmp_path):
    command = [sys.executable, "-m", "tests.card.card", "tests/card/cases.py"]
    done = subprocess.run(command, env=machines.build(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
