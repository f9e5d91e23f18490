"""The house keeps its shape: imports run downward, frameworks stay in their rooms, tables do not drift."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from bench import measure

FRAMEWORKS = ("torch", "torchvision", "tensorflow", "keras", "transformers")
SCRIPTS = sorted(Path().glob("*.py"))
# Every room, from the ground up: a file imports from the lines before its own.
LAYERS = [
    ["bench"],
    ["bench.settings", "bench.data", "bench.intervals", "bench.verdict", "bench.sensors"],
    ["bench.workload", "bench.cifar10"],
    ["bench.measure", "bench.environment", "bench.meters", "bench.results", "bench.peaks", "bench.operators"],
    ["bench.check", "bench.report", "bench.frameworks", "bench.tables", "bench.canary"],
    ["plot_results", "compare_results"],
    ["bench.frameworks.on_tensorflow", "bench.frameworks.on_torch"],
    ["bench.run"],
    ["bench.sweep"],
    ["bench.main", "bench.doctor"],
    [path.stem for path in SCRIPTS if path.stem not in ("plot_results", "compare_results")],
]
STANDARD_LIBRARY_ONLY = (
    "bench.settings",
    "bench.environment",
    "bench.peaks",
    "bench.measure",
    "bench.intervals",
    "bench.workload",
    "bench.verdict",
)


def module_name(path):
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in ROOMS else node.module for name in inner)


ROOMS = {module_name(path): path for path in [*Path("bench").rglob("*.py"), *SCRIPTS]}


def test_every_room_has_its_place():
    assert sorted(ROOMS) == sorted(name for layer in LAYERS for name in layer)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_downward(room):
    height = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    for imported in imports_of(ROOMS[room]):
        if imported in height:
            assert height[imported] < height[room], f"{room} imports {imported}"


@pytest.mark.parametrize("room", ROOMS)
def test_frameworks_are_imported_in_their_own_file_alone(room):
    found = {name.split(".")[0] for name in imports_of(ROOMS[room])} & set(FRAMEWORKS)
    assert not found or room.startswith("bench.frameworks.on_")


@pytest.mark.parametrize("room", STANDARD_LIBRARY_ONLY)
def test_these_need_the_standard_library_alone(room):
    found = {name.split(".")[0] for name in imports_of(ROOMS[room])}
    assert found <= set(sys.stdlib_module_names) | {"bench"}


@pytest.mark.parametrize("script", [path.stem for path in SCRIPTS])
def test_importing_a_script_loads_no_framework(script):
    program = f"import sys, {script}; print([m for m in {FRAMEWORKS} if m in sys.modules])"
    assert output_of(sys.executable, "-c", program) == "[]"


def output_of(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_flag_has_its_words():
    sources = "".join(ROOMS[room].read_text() for room in ("bench.measure", "bench.meters", "tflops_sweep"))
    assert all(f'"{flag}"' in sources.partition("class MeasurementError")[2] for flag in measure.FLAGS)


def test_make_alone_lists_targets_and_settings():
    listed = output_of("make")
    assert "make image" in listed
    assert "default: 64 (16 on a CPU) / 32 / 32 (4 on a CPU)" in listed
    assert listed == output_of("make", "help")


@pytest.mark.skipif(not importlib.util.find_spec("ruff"), reason="PYTHON=... without ruff")
@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_ruff(command):
    done = subprocess.run([sys.executable, "-m", "ruff", *command, "."], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
