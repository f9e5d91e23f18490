"""The doctor: a framework that crashes or hangs is a line, and one framework that runs is enough."""

import signal
import subprocess
import sys

import pytest

from bench import doctor

CRASHES = f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})"


@pytest.mark.parametrize(
    ("programs", "status"),
    [
        ({"torch": CRASHES, "jax": "print('jax          ok  0.8')"}, 0),
        ({"torch": CRASHES}, 1),
        ({"torch": "import time; time.sleep(100)"}, 1),
    ],
)
def test_a_framework_that_crashes_or_hangs_is_a_line(monkeypatch, capsys, programs, status):
    run = subprocess.run

    def start(command, **options):  # read_command() in bench/host starts processes, too
        return run([command[0], "-c", programs[command[-1]]] if "-m" in command else command, **options)

    monkeypatch.setattr(doctor.subprocess, "run", start)
    monkeypatch.setattr(doctor, "TRY_SECONDS", 1 if "sleep" in programs["torch"] else 300)
    monkeypatch.setenv("PYTHON", sys.executable)
    assert doctor.examine(programs) == status
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("torch")]
    assert line.split()[1] == "no"
