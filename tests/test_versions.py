"""FRAMEWORK_VERSION: an environment for each version that is not the installed one."""

import os
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import versions
from bench.settings import SettingError, read_runs


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Install FRAMEWORK_VERSION with a stand-in for install.sh; returns (the run's interpreter, its calls)."""
    calls = []

    def call(version, status=0, platform="linux", **environ):
        monkeypatch.setattr(versions, "ROOT", tmp_path)
        monkeypatch.setattr(metadata, "version", lambda name: "2.15.0+cu132")
        monkeypatch.setattr(versions.sys, "platform", platform)
        for name, text in environ.items():
            monkeypatch.setenv(name, text)

        (tmp_path / "requirements").mkdir(exist_ok=True)
        for path in [*Path().glob("requirements-*.txt"), *Path().glob("requirements/*.txt")]:
            (tmp_path / path).touch()

        def run(command, cwd):
            calls.append(command[2:])
            (tmp_path / command[3]).mkdir(exist_ok=True)
            return SimpleNamespace(returncode=status)

        monkeypatch.setattr(versions.subprocess, "run", run)
        (run,) = read_runs("image", {"FRAMEWORK_VERSION": version, "FRAMEWORK": environ.get("FRAMEWORK", "torch")})
        return versions.install(run).python, calls

    monkeypatch.delenv("PYTHON", raising=False)
    return call


def test_another_version_is_installed_once(install, tmp_path):
    assert install("2.15.0") == install("2.15") == (sys.executable, [])
    python = str(tmp_path / ".venv-torch-2.14.1/bin/python")
    called = ["requirements-cuda.txt", ".venv-torch-2.14.1", "torch", "2.14.1"]
    assert install("2.14.1") == (python, [called])
    os.utime(tmp_path / ".venv-torch-2.14.1/installed", (2**32, 2**32))
    assert install("2.14.1") == (python, [called])
    os.utime(tmp_path / ".venv-torch-2.14.1/installed", (0, 0))  # the requirements have changed since
    assert install("2.14.1") == (python, [called, called])
    assert install("2.1")[1][-1] == ["requirements-cuda.txt", ".venv-torch-2.1", "torch", "2.1.*"]  # not 2.15


@pytest.mark.parametrize(
    ("framework", "platform", "requirements"),
    [("jax", "linux", "requirements/jax.txt"), ("mlx", "darwin", "requirements-mac.txt")],
)
def test_the_requirements_are_those_of_the_framework_and_the_system(install, framework, platform, requirements):
    assert install("0.9.1", platform=platform, FRAMEWORK=framework)[1][0][0] == requirements
    assert Path(requirements).exists()


def test_what_cannot_be_installed_is_one_line(install, tmp_path):
    with pytest.raises(SettingError, match=r"FRAMEWORK_VERSION='9\.9\.9'"):
        install("9.9.9", status=2)
    assert not (tmp_path / ".venv-torch-9.9.9/installed").exists()  # so the next call tries again
    with pytest.raises(SettingError, match="PYTHON"):
        install("2.14.1", PYTHON="python3")
    for text in ("latest", "2"):
        with pytest.raises(SettingError, match=f"FRAMEWORK_VERSION='{text}'"):
            install(text)


def test_packages_that_differ_are_named(monkeypatch):
    lists = {"a": '{"torch": "2.14.1", "numpy": "2.3", "pytest": "8"}', "b": '{"torch": "2.15.0", "numpy": "2.3"}'}
    monkeypatch.setattr(versions, "output_of", lambda python, *_: lists[python])
    assert versions.describe_difference("a", "b").endswith(": torch 2.14.1 and 2.15.0")
    lists["b"] = None
    assert "unknown" in versions.describe_difference("a", "b")
