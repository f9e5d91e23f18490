"""Put known bugs into the measuring code, one at a time, and see whether the tests notice.

    .venv/bin/python -m tests.mutants                    all of them
    .venv/bin/python -m tests.mutants skip_a_step tf32   some of them

Each bug goes into a copy of the repository, in which the tests that should notice it run. A bug that no test notices
has survived, and the exit status is 1.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.bugs import BUGS

FAILED = 1  # pytest's exit status for failed tests; others mean that the tests did not run


def apply(bug, text):
    """Return the text of the bug's file with the bug in it; raises ValueError if the file has changed since."""
    if text.count(bug.before) != 1:
        raise ValueError(f"{bug.file} must contain exactly once:\n{bug.before}")
    return text.replace(bug.before, bug.after)


def copy_with(bug, folder):
    """Copy the repository's files into a folder, with one bug."""
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], text=True)
    for name in listed.splitlines():
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


def main(names):
    if unknown := set(names) - set(BUGS):
        print(f"no such bug: {', '.join(sorted(unknown))}; there are {', '.join(BUGS)}", file=sys.stderr)
        return 2
    survived = []
    for name in names or BUGS:
        with tempfile.TemporaryDirectory() as folder:
            copy_with(BUGS[name], folder)
            caught = is_caught(BUGS[name], folder)
        print(f"{'caught  ' if caught else 'SURVIVED'}  {name}", flush=True)
        survived += [] if caught else [name]
    print(f"{len(names or BUGS) - len(survived)} of {len(names or BUGS)} caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
