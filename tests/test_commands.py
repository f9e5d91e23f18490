"""What people type, typed: make and the scripts as processes."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import tflops_sweep
from bench import run
from bench.host import sensors
from bench.records import results
from bench.settings import FRAMEWORK_SYNONYMS, FRAMEWORKS
from bench.workloads import operators
from tests.frameworks.torch_reference import TINY
from transformer_benchmark import ENCODERS, transformer_workload

SMALL = {"MODEL": "squeezenet1_1", "BATCH_SIZE": "1", "MAX_SECONDS": "0.3", "MACHINE": "here", "SCOPE": "device"}
SMALL |= {"USE_GPU": "0", "RUNS": "1"}


def call(*command, **environ):
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environ)
    return done.returncode, done.stdout, done.stderr


def test_make_image_measures(tmp_path):
    status, out, err = call("make", "image", f"PYTHON={sys.executable}", **SMALL)
    assert status == 0, err
    assert "images/s" in out.splitlines()[1]
    assert out.endswith("here.csv\n")
    assert (tmp_path / "results" / "here.csv").exists()


MAKE = ("make", "image", f"PYTHON={sys.executable}")


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ((*MAKE, "BATCHSIZE=64"), {}),
        ((*MAKE, "BATCH_SIZE=0"), {}),
        (MAKE, {"BATCHSIZE": "64"}),
        ((sys.executable, str(Path("image_benchmark.py").resolve())), {"MODEL": "", "PYTHONPATH": ""}),
    ],
)
def test_a_mistake_is_one_line_with_make_and_without_it_from_anywhere(command, environ, tmp_path):
    folder = tmp_path if command[0] != "make" else None
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environ, cwd=folder)
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert (done.returncode, done.stdout, len(said)) == (2, "", 1)
    assert not (tmp_path / "results").exists()


def test_a_signal_ends_a_real_run_with_its_workers_and_files(tmp_path):
    environ = os.environ | SMALL | {"MAX_SECONDS": "60", "SCOPE": "input", "NUM_WORKERS": "1", "TMPDIR": str(tmp_path)}
    program = subprocess.Popen(
        [sys.executable, "image_benchmark.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        # A shell starts what it puts into the background deaf to Ctrl-C, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while "then measuring" not in (line := program.stderr.readline()):
        assert line, "the program ended before it measured"
    while len(children := psutil.Process(program.pid).children(recursive=True)) < 2:  # the child and its worker
        assert program.poll() is None
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=300)
    assert program.returncode == 130
    assert "Traceback" not in err
    assert ("interrupted" in out) != ("interrupted: " in err)
    assert not psutil.wait_procs(children, timeout=10)[1]
    assert not list(tmp_path.glob("jpegs-*"))


@pytest.fixture
def install(tmp_path):
    """Run install.sh with only these programs, and without another uv or Python; returns (status, stderr, log)."""

    def call(requirements="r.txt", **programs):
        folder = tmp_path / "bin"
        folder.mkdir()
        for tool in ("sh", "rm", "mkdir", "touch", "chmod"):
            (folder / tool).symlink_to(shutil.which(tool))
        for name, text in programs.items():
            path = folder / name.replace("_", ".")
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        command = ["sh", str(Path("bench/install.sh").resolve()), requirements, ".venv"]
        done = subprocess.run(command, cwd=tmp_path, env={"PATH": str(folder)}, capture_output=True, text=True)
        log = tmp_path / "log"
        return done.returncode, done.stderr, log.read_text().splitlines() if log.exists() else []

    return call


MAKE_VENV = "mkdir -p .venv/bin; echo '#!/bin/sh\necho \"venv $*\" >>log' >.venv/bin/python; chmod +x .venv/bin/python"


def test_uv_is_used_where_there_is_one(install):
    status, _, log = install(uv=f'echo "uv $*" >>log; [ "$1" = pip ] || {{ {MAKE_VENV}; }}')
    assert status == 0
    assert log[0].startswith("uv venv --quiet --python-preference system --python >=3.11,<3.13")
    assert log[-1] == "uv pip install --quiet --python .venv/bin/python -r r.txt"
    assert "venv -m bench.host.environment" in log


@pytest.mark.parametrize(
    ("driver", "kind"), [({"nvidia-smi": "exit 0"}, "cuda"), ({"nvidia-smi": "exit 9"}, "cpu"), ({}, "cpu")]
)
@pytest.mark.parametrize("has_cpu_file", [True, False])
def test_cuda_is_installed_for_a_driver_or_if_there_is_no_other_file(install, tmp_path, driver, kind, has_cpu_file):
    if has_cpu_file:
        (tmp_path / "requirements-cpu-x.txt").touch()
    _, _, log = install(
        "requirements-cuda-x.txt", uv=f'echo "uv $*" >>log; [ "$1" = pip ] || {{ {MAKE_VENV}; }}', **driver
    )
    assert log[-1].endswith(f" -r requirements-{kind if has_cpu_file else 'cuda'}-x.txt")


def test_pip_does_it_where_uv_cannot_be_had(install, tmp_path):
    made = f'echo "3.11 $*" >>log; {MAKE_VENV}'
    status, _, log = install(python3="mkdir -p .uv/bin; exit 1", python3_11=made)
    assert status == 0
    assert not (tmp_path / ".uv").exists()
    assert log[0] == "3.11 -m venv --clear .venv"
    assert log[-1] == "venv -m pip install --quiet --disable-pip-version-check -r r.txt"


def test_without_a_python_the_fix_is_named(install):
    status, said, _ = install()
    assert status == 2
    assert "PYTHON=..." in said


def dry_run(*arguments, **environ):
    return call("make", "--dry-run", *arguments, **environ)[1]


def test_nothing_is_installed_for_an_interpreter_of_the_users():
    for extra in ([], [f"PYTHON={sys.executable}"]):
        out = dry_run("--assume-new=requirements-common.txt", "image", *extra)
        assert ("install.sh" in out) == (extra == [])


@pytest.mark.skipif(sys.platform == "darwin", reason="on a Mac all have one environment")
@pytest.mark.parametrize(
    ("target", "environ", "lines"),
    [
        ("mlp", {}, [".venv/bin/python mlp_benchmark.py"]),
        ("mlp", {"FRAMEWORK": "tf"}, [".venv-tensorflow/bin/python mlp_benchmark.py"]),
        ("mlp", {"FRAMEWORK": "tensorflow", "PYTHON": "python3"}, ['"python3" mlp_benchmark.py']),
        (
            "test",
            {},
            ["FRAMEWORK=torch .venv", *(f"FRAMEWORK={name} .venv-{name}" for name in ("jax", "mlx", "tensorflow"))],
        ),
        ("test", {"FRAMEWORK": "torch"}, ["FRAMEWORK=torch .venv"]),
        ("test", {"FRAMEWORK": "TF"}, ["FRAMEWORK=tensorflow .venv-tensorflow"]),
        ("test", {"PYTHON": "python3"}, ['"python3" -m pytest']),
    ],
)
def test_make_chooses_the_environment_of_the_framework(target, environ, lines):
    out = dry_run(target, **environ)
    tested = re.findall(r"(FRAMEWORK=\w+) TORCH_PYTHON=\S+ (\S+)/bin/python -m pytest", out)
    assert ([" ".join(each) for each in tested] or out.splitlines()[-1:]) == lines


def test_the_makefile_knows_the_registered_frameworks():
    synonyms = dict(re.findall(r"^SYNONYM_(\w+) := (\w+)$", Path("Makefile").read_text(), re.M))
    assert synonyms == FRAMEWORK_SYNONYMS
    for name, known in FRAMEWORKS.items():
        assert Path(f"requirements-cuda-{name}.txt").exists() == known.has_own_environment


def load_broken_tensorflow(tmp_path, program, before="pass"):
    """The line that a run gets where importing tensorflow runs this program."""
    (tmp_path / "tensorflow.py").write_text(program)
    load = (
        f"import platform, sys\nfrom bench import cli, frameworks\n{before}\n"
        "sys.exit(cli.run_script(lambda: frameworks.load('tensorflow')))"
    )
    status, out, err = call(sys.executable, "-c", load, PYTHONPATH=f"{tmp_path}:{os.getcwd()}")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    return err.strip()


def test_a_metal_plug_in_of_another_tensorflow_is_told_in_one_line(tmp_path):
    program = (
        "class NotFoundError(Exception): pass\n"
        "raise NotFoundError('dlopen(libmetal_plugin.dylib):\\n Symbol not found: _TF_X')"
    )
    said = load_broken_tensorflow(tmp_path, program, "platform.system = lambda: 'Darwin'")
    assert said.startswith("FRAMEWORK='tensorflow' cannot be loaded (... dlopen(libmetal_plugin.dylib): Symbol not")
    assert "tensorflow-metal 1.2.0 needs TensorFlow 2.16 to 2.19, `pip install" in said
    said = load_broken_tensorflow(
        tmp_path, "raise ImportError('a\\nTraceback ' * 100)", "platform.system = lambda: 'Linux'"
    )
    assert said.endswith("install it again, as requirements-cuda-tensorflow.txt says")
    assert len(said) < 400


def test_a_missing_tensorflow_names_the_fix(tmp_path):
    missing = "raise ModuleNotFoundError('No module named tensorflow', name='tensorflow')"
    said = load_broken_tensorflow(tmp_path, missing, "sys.version_info = (3, 12)")
    assert said.startswith("the package tensorflow is missing in ")
    assert "pip install -r" in said
    a_mac = "platform.system = lambda: 'Darwin'; sys.version_info = (3, 13)"
    assert "has no Metal plug-in for Python 3.13 or newer: " in load_broken_tensorflow(tmp_path, missing, a_mac)


def test_benchmarks_run_with_use_gpu_and_without_the_optional_packages(monkeypatch, tmp_path):
    optional = ("psutil", "pynvml", "zeus_apple_silicon")
    program = f"import sys; sys.modules |= dict.fromkeys({optional}); from bench.host import meters, sensors"
    assert call(sys.executable, "-c", program) == (0, "", "")
    for package in optional:
        monkeypatch.setitem(sys.modules, package, None)  # importing it fails
    monkeypatch.setattr(sensors, "psutil", None)
    small = SMALL | {"PHASE": "inference", "DATA": "synthetic", "SEQUENCE_LENGTH": "8", "USE_GPU": "1"}
    small |= {"SIZES": "32", "PRECISION": "float32", "OPS": "matmul,bandwidth", "MAX_SECONDS": "0.05"}
    for name, value in small.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(operators, "COPY_NUMBERS", 2**20)
    monkeypatch.setitem(ENCODERS, "tiny-bert", TINY["tiny-bert"])
    monkeypatch.setenv("MODEL", "tiny-bert")
    assert run.run_child("transformer", transformer_workload) == 0
    assert run.run_child("tflops", tflops_sweep.first_size, tflops_sweep.run_sweep) == 0
    rows = results.read(tmp_path / "results" / "here.csv")
    assert {row["workload"] for row in rows if row["status"] == "ok"} >= {"transformer", "matmul"}
    assert {(row["temperature_c"], row["clock_mhz"], row["power_watts"]) for row in rows} == {("", "", "")}
