"""No test sees the settings of whoever runs it, and none writes into results/.

FRAMEWORK names the one framework whose tests run; tests that need none run with torch's. Without it all of them
run, and a framework that is not installed is a failure.
"""

import os
import sys
from pathlib import Path

import pytest

from bench.machine import sensors
from bench.machine.environment import ALLOCATOR_VARIABLES
from bench.settings import known_names, read_settings

OF_TENSORFLOW = {"frameworks/test_tensorflow.py"}
ALL = {path.relative_to(Path(__file__).parent).as_posix() for path in Path(__file__).parent.rglob("test_*.py")}
if "FRAMEWORK" in os.environ:
    asked = read_settings("tests", {"FRAMEWORK": os.environ["FRAMEWORK"]}).framework
    collect_ignore = sorted({"torch": OF_TENSORFLOW, "tensorflow": ALL - OF_TENSORFLOW}[asked])


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    for name in [*known_names(), *ALLOCATOR_VARIABLES, "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"]:
        monkeypatch.delenv(name, raising=False)
    # No test reads the host's own meters: a counter takes seconds, a hot machine raises flags.
    monkeypatch.setattr(sensors, "POWERCAP", tmp_path)
    monkeypatch.setattr(sensors, "read_cpu", dict)
    monkeypatch.setattr(sensors, "read_thermal_pressure", lambda: None)
    for package in ("pynvml", "zeus_apple_silicon"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "results"))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
