"""Install versions of a framework other than the pinned one, each into an environment of its own: FRAMEWORK_VERSION."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

from bench.host.environment import output_of
from bench.settings import ROOT, Run, SettingError

LIST_PACKAGES = (
    "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
)


def install(run: Run):
    """Return the run with the interpreter of an environment that has its FRAMEWORK_VERSION; installs what is missing.

    Raises:
        SettingError: it cannot be installed.
    """
    name = run.settings.framework  # which is also that of its package
    version = run.settings.framework_version
    if f"{metadata.version(name).partition('+')[0]}.".startswith(f"{version}."):  # 2.15 means its newest, or the pinned
        return run
    if os.environ.get("PYTHON"):
        fix = "measure each version with its own PYTHON and RESULTS_DIR, then `make compare` their files"
        raise SettingError(f"FRAMEWORK_VERSION={version!r} needs an installation, and PYTHON=... has none: {fix}")
    venv = ROOT / f".venv-{name}-{version}"
    requirements = "requirements-cuda.txt" if name == "torch" else f"requirements/{name}.txt"
    requirements = "requirements-mac.txt" if sys.platform == "darwin" else requirements
    wanted = f"{version}.*" if version.count(".") == 1 else version
    is_complete = venv / "installed"
    if not is_complete.exists() or is_complete.stat().st_mtime < (ROOT / requirements).stat().st_mtime:
        command = ["sh", "bench/install.sh", requirements, venv.name, name, wanted]
        if subprocess.run(command, cwd=ROOT).returncode:
            raise SettingError(f"FRAMEWORK_VERSION={version!r} cannot be installed, see above: choose another version")
        is_complete.touch()
    return replace(run, python=str(venv / "bin" / "python"))


def describe_difference(python, other_python):
    """List the packages that differ between two environments: "torchvision 0.29.2 and 0.29.1"."""
    packages, others = (json.loads(output_of(each, "-c", LIST_PACKAGES) or "{}") for each in (python, other_python))
    if not (packages and others):
        return "packages that differ: unknown, because an interpreter cannot list its packages"
    differing = [
        f"{name} {packages[name]} and {others[name]}"
        for name in sorted(packages.keys() & others.keys())
        if packages[name] != others[name]
    ]
    return "packages that differ: " + ", ".join(differing)
