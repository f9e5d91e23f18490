"""Every known bug still applies, and one of them is caught; `python -m tests.mutants` runs all of them."""

from pathlib import Path

import pytest

from tests.mutants.__main__ import apply, copy_with, is_caught
from tests.mutants.bugs import BUGS


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_changes_its_file(name):
    text = Path(BUGS[name].file).read_text()
    assert apply(BUGS[name], text) != text


def test_a_bug_is_caught(tmp_path):
    bug = BUGS["accept_equal_items"]
    copy_with(bug, tmp_path)
    assert is_caught(bug, tmp_path)
