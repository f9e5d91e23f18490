"""No test sees the settings of whoever runs it, and none writes into results/.

FRAMEWORK names the one framework whose tests run. In an environment of its own these are its file and the contract;
elsewhere all tests run but those of the other frameworks. Without FRAMEWORK all of them run, and a framework that is
not installed is a failure.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

from bench.host import environment, sensors
from bench.host.environment import SETUP_VARIABLES
from bench.settings import FRAMEWORKS, known_names, read_settings

# For what a script starts in the background (`make test &`), a shell ignores Ctrl-C; here it is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)


def tests_of(framework):
    """The files that run with FRAMEWORK=framework, as names in tests/."""
    own = {name: f"frameworks/test_{name}.py" for name in FRAMEWORKS}
    if FRAMEWORKS[framework].has_own_environment:
        return {own[framework], "frameworks/test_contract.py"}
    return ALL - (set(own.values()) - {own[framework]})


ALL = {path.relative_to(Path(__file__).parent).as_posix() for path in Path(__file__).parent.rglob("test_*.py")}
TESTED = tuple(FRAMEWORKS)  # the frameworks whose contract is tested
if "FRAMEWORK" in os.environ:
    TESTED = (read_settings("tests", {"FRAMEWORK": os.environ["FRAMEWORK"]}).framework,)
    collect_ignore = sorted(ALL - tests_of(*TESTED))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    for name in [*known_names(), *SETUP_VARIABLES, "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"]:
        monkeypatch.delenv(name, raising=False)
    # No test reads the host's own meters and cards: a counter takes seconds, a hot machine raises flags.
    monkeypatch.setattr(sensors, "POWERCAP", tmp_path)
    monkeypatch.setattr(sensors, "read_cpu", dict)
    monkeypatch.setattr(sensors, "read_thermal_pressure", lambda: None)
    monkeypatch.setattr(environment, "find_card", lambda: None)
    monkeypatch.setattr(environment, "hides_cards", lambda: False)
    monkeypatch.setattr(environment, "find_driver", lambda: None)
    monkeypatch.setattr(environment, "find_cuda_version", lambda: None)
    monkeypatch.setattr(environment, "find_apple_gpu_cores", lambda: None)  # seconds, on a Mac
    for package in ("pynvml", "zeus_apple_silicon"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "results"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), str(Path(__file__).parent / "processes")]))
