"""Every known bug still applies, and a sample of them is caught; `python -m tests.mutants` runs all of them."""

from pathlib import Path

import pytest

from tests.mutants.__main__ import apply, copy_with, is_caught
from tests.mutants.bugs import BUGS

SAMPLE = ("no_read", "accept_another_last_output")


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_changes_its_file(name):
    text = Path(BUGS[name].file).read_text()
    assert apply(BUGS[name], text) != text


@pytest.mark.parametrize("name", SAMPLE)
def test_a_bug_is_caught(name, tmp_path):
    copy_with(BUGS[name], tmp_path)
    assert is_caught(BUGS[name], tmp_path)
