"""Imports run one way, and frameworks stay in their files."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import run
from bench.frameworks import FOLDERS as FOLDERS_OF_FRAMEWORKS
from bench.records import columns
from bench.settings import MEASURED_EACH, WORKLOADS

FOLDERS = tuple(f"bench.frameworks.{folder}." for folder in FOLDERS_OF_FRAMEWORKS.values())
FRAMEWORKS = ("torch", "torchvision", "tensorflow", "jax", "keras", "transformers", "mlx", "mlx_lm")
SCRIPTS = sorted(Path().glob("*.py"))
# From the ground up: a file imports from its own folder and from the lines before, never from its own line otherwise.
LAYERS = [
    ["bench.settings"],
    ["bench.packages"],
    ["bench.process"],
    ["bench.host"],
    ["bench.workloads"],
    ["bench.timing|bench.precision|bench.check"],
    ["bench.frameworks", "bench.records"],
    ["bench.child"],
    ["bench.run", "bench.plots"],
    ["bench.doctor"],
    [path.stem for path in SCRIPTS if path.stem != "measure_all"],
    ["measure_all"],  # it prints what the others do
]
# The rooms of the house: most lines (of documents most words), and their files, less those of the rooms before.
CEILINGS = {
    "settings": (370, "bench/settings.py"),
    "run, process, child": (867, "bench/run.py", "bench/process.py", "bench/child.py"),
    "scripts": (1566, "*.py"),
    "check": (397, "bench/check.py", "bench/precision.py"),
    "doctor, packages": (144, "bench/*.py"),
    "timing": (394, "bench/timing/*.py"),
    "frameworks": (2329, "bench/frameworks/**/*.py"),
    "host": (576, "bench/host/*.py"),
    "workloads": (536, "bench/workloads/*.py"),
    "records": (962, "bench/records/*.py"),
    "plots": (697, "bench/plots/*.py"),
    "page.js": (207, "bench/plots/page.js"),
    "checks/": (412, "checks/*.py"),
    "tests/": (6700, "tests/**/*.py"),
    "words of documents": (10_000, "README.md", "docs/*.md"),
}
# What runs before anything is installed.
STANDARD_LIBRARY_ONLY = ("bench.settings", "bench.host.environment", "bench.doctor")


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in FILES else node.module for name in inner)


PATHS = [*Path("bench").rglob("*.py"), *SCRIPTS]
FILES = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in PATHS}


def layer_of(module):
    """(height, entry of LAYERS) that a module belongs to; None if it is not ours."""
    for height, layer in enumerate(LAYERS):
        for entry in layer:
            if any(module == each or module.startswith(f"{each}.") for each in entry.split("|")):
                return height, entry
    return None


@pytest.mark.parametrize("module", sorted(FILES.keys() - {"bench"}))
def test_imports_run_downward(module):
    height, entry = layer_of(module)
    imports = list(imports_of(FILES[module]))
    for imported in imports:
        there = layer_of(imported)
        assert there is None or there[1] == entry or there[0] < height, f"{module} imports {imported}"
    packages = {name.split(".")[0] for name in imports}
    assert not packages & set(FRAMEWORKS) or module.startswith(FOLDERS)
    assert packages <= set(sys.stdlib_module_names) | {"bench"} or module not in STANDARD_LIBRARY_ONLY


def files_of_rooms():
    """Return {room: its files}."""
    taken, rooms = set(), {}
    for room, (_, *patterns) in CEILINGS.items():
        rooms[room] = {path for pattern in patterns for path in Path().glob(pattern)} - taken
        taken |= rooms[room]
    return rooms


@pytest.mark.parametrize("room", CEILINGS)
def test_a_room_is_not_larger_than_its_ceiling(room):
    texts = [path.read_text(encoding="utf-8") for path in files_of_rooms()[room]]
    count = sum(len(text.split() if room == "words of documents" else text.splitlines()) for text in texts)
    assert count <= CEILINGS[room][0], "something has to go out, or a commit of its own says why the ceiling rises"


def test_each_file_is_in_a_room():
    folders = [path for path in Path().iterdir() if path.is_dir() and not path.name.startswith(".")]
    files = {*Path().glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))}
    assert files <= set().union(*files_of_rooms().values())


def test_importing_the_scripts_loads_no_framework():
    scripts = ", ".join(path.stem for path in SCRIPTS)
    program = f"import sys, {scripts}; print([m for m in {FRAMEWORKS} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_words_of_the_owner_stay():
    words = "USE_GPU=1 BATCH_SIZE=64 make image|make tflops|make plot|NUM_IMAGES|IMAGE_MODEL|mlp.png|tqdm bar"
    text = Path("README.md").read_text()
    assert [each for each in f"{words}|requirements-mac.txt|requirements-cuda.txt".split("|") if each not in text] == []
    assert "tensorflow-macos" in Path("docs/mac.md").read_text()


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_known_everywhere(name):
    assert callable(getattr(importlib.import_module(Path(run.SCRIPTS[name]).stem), f"{name}_workload"))
    makefile = Path("Makefile").read_text()
    assert f"\n{name}: $(READY) ## " in makefile
    assert re.search(rf"^COMMANDS :=(.*\\\n)*.* {name} ", makefile, re.MULTILINE)
    assert re.search(rf"^[a-z ]*\b{name}\b[a-z ]*:\n\t@\$\(RUN\) \$@_benchmark.py", makefile, re.MULTILINE)
    assert f"`make {name}`" in Path("README.md").read_text()


def test_a_setting_that_describes_the_work_has_a_column():
    elsewhere = {"use_gpu": "device", "num_devices": "world_size"}
    assert {elsewhere.get(name, name) for name in MEASURED_EACH} <= {*columns.WORK, "device"}


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["basedpyright", "--pythonpath", sys.executable]],
)
def test_static_checks(command):
    if not importlib.util.find_spec(command[0]):
        pytest.skip(f"PYTHON=... without {command[0]}")
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
