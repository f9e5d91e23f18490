"""What bench/install.sh installs for which GPU, with stand-ins for the programs that it asks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Its file `cards` has a line for each card; an old driver's has no compute capability.
NVIDIA_SMI = """#!/bin/sh
case "$2 $3" in
    *compute_cap\\ --id=[0-9]) sed -n "$((${3#--id=} + 1))p" cards | grep , ;;
    *compute_cap\\ --id=*) echo "No devices were found" && false ;;
    *compute_cap*) grep , cards || { echo 'Field "compute_cap" is not a valid field to query.' && false; } ;;
    *) cat cards ;;
esac
"""
BROKEN_SMI = "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the driver.'\nexit 9\n"
ROCM = "#!/bin/sh\necho gfx000\necho gfx1100\n"
UV = """#!/bin/sh
case "$*" in
    venv*{python}*) mkdir -p .venv/bin && cp fake_python .venv/bin/python ;;
    *{refuses}* | venv*) printf 'error: %s\\n  cause: %s\\n' "{refuses}" "{cause}" >&2; exit 2 ;;
    *--dry-run*) ;;
    *) echo "$*" >>asked ;;
esac
"""
PYTHON3 = "#!/bin/sh\nmkdir -p .uv/bin && cp bin/pip .uv/bin\n"
NO_UV = {"python3": PYTHON3, "pip": '#!/bin/sh\n[ "$PIP_USER" = 0 ] && cp uv .uv/bin\n', "PIP_USER": "1"}
PYTHON = """#!/bin/sh
case "$*" in
    *torch.version.{built_for}\\)*) exit 0 ;; *torch.version*) exit 1 ;; *platform*) exit {is_x86_on_mac} ;;
esac
"""
TOOLS = ("sh", "awk", "cat", "cp", "grep", "mkdir", "rm", "sed", "tr", "xargs")

TORCH, JAX, MLX = "requirements-cuda.txt", "requirements/jax.txt", "requirements/mlx.txt"
PYPI, CPU, AUTO = f"-r {TORCH}", f"--torch-backend=cpu -r {TORCH}", f"--torch-backend=auto -r {TORCH}"
CU126 = f"--override requirements/torch-cuda12.txt --torch-backend=cu126 -r {TORCH}"
H200, A100, RTX_5090 = "580.159.03, 9.0", "550.54.14, 8.0", "570.86.10, 12.0"
TWO = "550.54.14, 12.0\n550.54.14, 8.0"
BUILT_IN, ARC = ("0000:00:02.0", "0x8086"), ("0000:03:00.0", "0x8086")

# machine: (its settings, exit status, what uv was asked to install at last, words of the last line)
MACHINES = {
    "an A100, no index": ({"cards": A100, "refuses": "cu126"}, 2, None, "driver 580 PYTHON="),
    "an RTX 5090 with driver 570": ({"cards": RTX_5090}, 2, None, "driver 580 PYTHON= USE_GPU=0"),
    "a V100 with driver 580": ({"cards": "580.95.05, 7.0"}, 0, CU126, "580.95.05"),
    "a K80 with driver 470": ({"cards": "470.82.01"}, 2, None, "driver 525 PYTHON= USE_GPU=0"),
    "the second of two": ({"cards": TWO, "CUDA_VISIBLE_DEVICES": "1,0"}, 0, CU126, "550.54.14"),
    "no driver, no index": ({"refuses": "--torch-backend"}, 0, PYPI, "PyPI"),
    "a login node, CUDA 12": ({"CUDA_BUILD": "12"}, 0, CU126, "CUDA_BUILD=12 550"),
    "no Python": ({"python": "none", "cause": "No interpreter found"}, 2, None, "cause: PYTHON= python3.12"),
    "an x86-64 Python on a Mac": ({"is_x86_on_mac": 1, "refuses": "pip"}, 2, None, "arm64 make clean"),
    "no wheels": ({"refuses": "--dry-run", "cause": "torch has no wheels with a matching tag"}, 2, None, "wheels"),
    "a home that is read-only": ({"refuses": "venv", "cause": "initialize cache"}, 2, None, "UV_CACHE_DIR"),
    "a container without nvidia-smi": ({"displays": [("0000:01:00.0", "0x10de")]}, 0, CPU, "CUDA_BUILD=13 cpu"),
    "a driver that fails": ({"nvidia-smi": BROKEN_SMI}, 0, CPU, "cpu"),
    "an H200 with driver 580": ({"cards": H200}, 0, PYPI, H200[:10]),
    "a card that is not wanted": ({"cards": H200, "built_for": "none", "USE_GPU": "0"}, 0, CPU, "cpu"),
    "a build for the CPU": ({"cards": H200, "built_for": "none"}, 2, PYPI, "make clean"),
    "an AMD card": ({"rocm_agent_enumerator": ROCM, "built_for": "hip"}, 0, AUTO, "auto"),
    "an Intel card": ({"displays": [BUILT_IN, ARC], "built_for": "xpu"}, 0, AUTO, "auto"),
    "Intel's built-in graphics": ({"displays": [BUILT_IN]}, 0, CPU, "cpu"),
    "JAX, driver 550": ({"cards": A100, "file": JAX}, 0, "-r .venv.txt", ".venv.txt"),
    "MLX, a V100": ({"cards": "580.95.05, 7.0", "file": MLX}, 2, None, "7.5 FRAMEWORK=torch USE_GPU=0"),
    "JAX, no driver": ({"file": JAX}, 0, "-r requirements/jax-cpu.txt", "jax-cpu"),
    "no driver, no uv": (NO_UV, 0, CPU, "cpu"),
    "no uv and no venv": (NO_UV | {"python3": BROKEN_SMI, "refuses": "all"}, 2, None, "python3-venv PYTHON="),
    "plots": ({"file": "requirements/common.txt", "cards": RTX_5090}, 0, "-r requirements/common.txt", "common"),
}


@pytest.fixture
def install(tmp_path):
    """Return a function that runs install.sh on a machine: (exit status, lines, what uv was asked to install)."""

    def write(name, text):
        path = tmp_path / "bin" / name
        path.unlink(missing_ok=True)  # may be a link to this machine's
        path.write_text(text)
        path.chmod(0o755)

    def call(file=TORCH, cards="", refuses="nothing", cause="", python="", displays=(), built_for="cuda", **given):
        for slot, vendor in displays:
            (tmp_path / "pci" / slot).mkdir(parents=True)
            (tmp_path / "pci" / slot / "class").write_text("0x030000\n")
            (tmp_path / "pci" / slot / "vendor").write_text(f"{vendor}\n")
        if cards:
            (tmp_path / "cards").write_text(f"{cards}\n")
            write("nvidia-smi", NVIDIA_SMI)
        write("../uv" if "pip" in given else "uv", UV.format(refuses=refuses, cause=cause, python=python))
        for name in given.keys() & {"nvidia-smi", "rocm_agent_enumerator", "python3", "pip"}:
            write(name, given.pop(name))
        write("../fake_python", PYTHON.format(built_for=built_for, is_x86_on_mac=given.pop("is_x86_on_mac", 0)))
        (tmp_path / "asked").touch()
        command = ["sh", "install.sh", file, ".venv"]
        environ = {"PATH": str(tmp_path / "bin")} | given
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environ)
        asked = (tmp_path / "asked").read_text().splitlines()
        return done.returncode, done.stderr.splitlines(), [line.partition("/bin/python ")[2] for line in asked]

    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    shutil.copytree("requirements", tmp_path / "requirements")
    for path in Path().glob("requirements-*.txt"):
        shutil.copy(path, tmp_path)
    # No test sees the graphics of whoever runs it.
    script = Path("bench/install.sh").read_text().replace("/sys/bus/pci/devices", str(tmp_path / "pci"))
    (tmp_path / "install.sh").write_text(script)
    return call


@pytest.mark.parametrize("machine", MACHINES)
def test_each_machine_gets_the_build_for_its_gpu(install, tmp_path, machine):
    given, status, installed, words = MACHINES[machine]
    found, lines, asked = install(**given)
    assert (found, asked[-1:]) == (status, [installed] if installed else []), lines
    assert all(word in " ".join(lines[-2:]) for word in words.split()), lines
    assert installed or "refuses" in given or (len(lines) == 1 and not (tmp_path / ".venv").exists())
    if installed == "-r .venv.txt":  # packages for CUDA 12 differ in one word; the copy is in another folder
        ours = Path(given["file"]).read_text().replace("\n-r ", "\n-r requirements/")
        assert (tmp_path / ".venv.txt").read_text() == ours.replace("[cuda13]", "[cuda12]") != ours


@pytest.fixture
def fresh_make(tmp_path):
    """Return a function that calls make in a clone without environments: (exit status, lines, what is installed)."""
    for name in ("Makefile", "bench", "requirements", *map(str, Path().glob("requirements-*.txt")), "docs/settings.md"):
        copy = shutil.copytree if Path(name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy(name, tmp_path / name)
    (tmp_path / "bench/install.sh").write_text('mkdir -p $2/bin && cp bin/true $2/bin/python && echo "installs $2"\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(sys.executable)
    (tmp_path / "bin/true").symlink_to(str(shutil.which("true")))

    def call(*goals, **environ):
        environ |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(["make", *goals], cwd=tmp_path, capture_output=True, text=True, env=os.environ | environ)
        said = done.stderr.splitlines()
        return done.returncode, said, [line.split()[1] for line in done.stdout.splitlines() if "installs" in line]

    return call


WRONG = ["image BATCHSIZE=8", "diffusion FRAMEWORK=mlx", "best WORKLOAD=llm PRECISION=fp8", "plot A=x"]
WRONG += ["install FRAMEWORK=pytroch", "image all FRAMEWORK=torch,jax", "image all MODEL=vgg11"]


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_setting_is_told_before_anything_is_installed(fresh_make, line):
    status, said, installed = fresh_make(*line.split())
    name, text = line.split()[-1].split("=")
    assert (status, f"{name}='{text}'" in said[0], installed) == (2, True, []), said


def test_what_is_asked_for_is_installed_once(fresh_make, tmp_path):
    on_linux = sys.platform != "darwin"
    assert fresh_make("compare", FRAMEWORK="jax") == (0, [], [".venv-common"])
    assert fresh_make("install") == (0, [], [".venv"])
    assert fresh_make("image") == (0, [], [])  # without a network: what is installed stays
    for command, installed in (("compare", []), ("image", [".venv"])):  # after new requirements
        assert fresh_make("-W", "requirements/common.txt", command) == (0, [], installed)
    assert fresh_make("install", FRAMEWORK="TF") == (0, [], [".venv-tensorflow"] * on_linux)
    assert fresh_make("image", FRAMEWORK="torch,JAX") == (0, [], [".venv-jax"] * on_linux)
    assert fresh_make("install", FRAMEWORK="all") == (0, [], [".venv-mlx"] * on_linux)
    (tmp_path / ".venv/bin/python").chmod(0o600)  # as if it were another user's
    status, (said, *_), _ = fresh_make("plot")
    assert (status, ".venv/bin/python" in said, "git clone" in said) == (2, True, True)
