"""Known bugs, put into the code one at a time: each still applies, and the tests that should notice it do.

    MUTANTS=1 .venv/bin/python -m pytest tests/test_mutants.py                      all of them, which takes minutes
    MUTANTS=1 .venv/bin/python -m pytest tests/test_mutants.py -k "skip_a_step"     one of them

Each bug goes into a copy of the repository, in which its tests run.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.bugs import BUGS

FAILED = 1  # pytest's exit status for failed tests; others mean that the tests did not run


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_changes_its_file(name):
    assert Path(BUGS[name].file).read_text().count(BUGS[name].before) == 1


@pytest.mark.parametrize("name", BUGS if os.environ.get("MUTANTS") else ["accept_equal_items"])
def test_a_bug_is_caught(name, tmp_path):
    bug = BUGS[name]
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], text=True)
    for each in listed.splitlines():
        if Path(each).is_file() and not each.startswith(("results/", "docs/")):
            (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(each, tmp_path / each)
    (tmp_path / bug.file).write_text(Path(bug.file).read_text().replace(bug.before, bug.after))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", bug.test]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == FAILED, done.stdout[-2000:] + done.stderr[-2000:]
