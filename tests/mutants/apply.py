"""Apply one bug to a copy of the repository and run the tests that should notice it."""

import shutil
import subprocess
import sys
from pathlib import Path

FAILED = 1  # pytest's exit status for failed tests; others mean that the tests did not run


def apply(bug, text):
    """Return the text of the bug's file with the bug in it; raises ValueError if the file has changed since."""
    if text.count(bug.before) != 1:
        raise ValueError(f"{bug.file} must contain exactly once:\n{bug.before}")
    return text.replace(bug.before, bug.after)


def copy_with(bug, folder):
    """Copy the repository's files into a folder, with one bug."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if Path(name).is_file() and not name.startswith(("results/", "docs/")):
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, target)
    Path(folder, bug.file).write_text(apply(bug, Path(bug.file).read_text()))


def is_caught(bug, folder):
    """Whether a test in a copy fails; raises RuntimeError if the tests cannot run there."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *bug.tests]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode not in (0, FAILED):
        raise RuntimeError(f"the tests did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == FAILED
