"""No test sees the settings of whoever runs it, and none writes into results/.

FRAMEWORK names the framework whose tests run, PyTorch by default. PyTorch's are all tests but those of the other
frameworks; another framework's are its files and the contract. A framework that is not installed is a failure. With
USE_GPU=0 these tests leave the GPU of the machine alone, which is as if it had none.
"""

import gc
import logging
import math
import os
import signal
import sys
from pathlib import Path

import pytest

from bench import run
from bench.host import environment, meters
from bench.host.environment import SETUP_VARIABLES
from bench.settings import FRAMEWORKS, MAKE_VARIABLES, SETTING_NAMES, read_settings

# Before PyTorch is imported. Several tests run at once, and threads that wait for each other take most of the time.
os.environ["OMP_NUM_THREADS"] = "1"
# Without bytecode in files, each process compiles PyTorch's sources, which takes longer than most tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# For what a script starts in the background (`make test &`), a shell ignores Ctrl-C; here it is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)

ALL = {path.relative_to(Path(__file__).parent).as_posix() for path in Path(__file__).parent.rglob("test_*.py")}
GIVEN = {name: os.environ[name] for name in ("FRAMEWORK", "USE_GPU") if os.environ.get(name)}
TESTED = read_settings("tests", GIVEN).framework
USE_GPU = read_settings("tests", GIVEN).use_gpu
KERAS = ["keras"] if TESTED in ("tensorflow", "jax") else []
OWN = {f"frameworks/test_{name}.py" for name in (TESTED, *KERAS)}
OTHERS = {f"frameworks/test_{name}.py" for name in (*FRAMEWORKS, "keras")} - OWN
SHARED = {"frameworks/test_contract.py", "frameworks/test_llm.py"}
collect_ignore = sorted(OTHERS if TESTED == "torch" else ALL - OWN - SHARED)


@pytest.fixture(autouse=True)
def young_objects():
    """Let a test collect only its own objects: a framework has hundreds of thousands, and each measurement collects."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    logging.getLogger("bench").setLevel(logging.NOTSET)  # a test of several ranks raises it
    setup = filter(SETUP_VARIABLES.fullmatch, os.environ)
    for name in [*SETTING_NAMES, *MAKE_VARIABLES, *setup, "COMMANDS_OF_LINE", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"]:
        monkeypatch.delenv(name, raising=False)
    # No test reads the host's own meters and cards: a counter takes seconds, a hot machine raises flags.
    monkeypatch.setattr(meters, "read_thermal_pressure", dict)
    monkeypatch.setattr(environment, "list_cards", list)
    monkeypatch.setattr(environment, "SYS", tmp_path)
    monkeypatch.setattr(meters, "others_cpu_seconds", lambda: math.nan)
    monkeypatch.setattr(run, "SAMPLE_SECONDS", 0)
    monkeypatch.setattr(environment, "read_mac", lambda: {"cpu_name": "Apple M1"})  # takes seconds
    for package in ("pynvml", "zeus_apple_silicon"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "results"))
    monkeypatch.setattr(sys, "argv", ["script.py"])  # without pytest's arguments
    paths = [os.getcwd(), str(Path(__file__).parent / "processes"), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
