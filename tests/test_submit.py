"""Added rows pass; a wrong cell or an edited row is refused in one line, at the right place."""

import subprocess

import pandas as pd
import pytest

import submit_results
from bench.records import tables
from bench.records.results import to_cells
from bench.settings import SettingError, read_settings
from tests.rows import FAILED, LLM, MATMUL, ROW

CHIP = ROW["machine"]
ENDS = {"throughput_low": None, "throughput_high": None}
OF_ONE = ENDS | {"batch_size": 1, "items": 40, "throughput": 6.25, "flops_per_item": None, "tflops": None}
MULTIPLY = MATMUL | OF_ONE | {"batch_size": None, "flops_per_item": 2e11, "tflops": 1.25}
DECODE = LLM | OF_ONE | {"phase": "decode", "bytes_per_step": 1.6e9, "bandwidth": 10}
PIPELINE = {"scope": "end_to_end", "throughput": 640 / 6.5, "tflops": 2.363077} | ENDS
EPOCH = PIPELINE | {"scope": "epoch", "windows": None, "steps_per_window": None, "step_seconds_median": None}


def faults_of(cells):
    row = ROW | {"process": 1} | cells
    return [fault for fault, wrong in submit_results.find_faults(tables.frame_of([row]), CHIP).items() if wrong.any()]


@pytest.mark.parametrize("cells", [{}, MULTIPLY, DECODE, PIPELINE, EPOCH, FAILED])
def test_results_and_failures_of_this_program_pass(cells):
    assert faults_of(cells) == []


# (cells, those that make them wrong): the first of the latter is named.
BAD = [
    ({}, {"source": "https://example.org"}),
    ({}, {"machine": "another"}),
    ({}, {"throughput": 320, "throughput_high": 340, "tflops": 7.68}),
    ({}, {"throughput": 100, "throughput_low": 100.1}),
    ({}, {"throughput": 100, "items": None}),
    (PIPELINE, {"throughput": 99, "tflops": 2.376}),
    (DECODE, {"bandwidth": 20}),
    ({}, {"tflops": 3}),
]


@pytest.mark.parametrize(("cells", "change"), BAD)
def test_a_wrong_cell_is_refused(cells, change):
    (fault,) = faults_of(cells | change)
    assert fault.split()[0] == next(iter(change))


@pytest.fixture
def repository(tmp_path):
    """A repository with one machine's file on main, checked out on the branch of a pull request."""

    def run(*command):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.check_output(["git", "-C", tmp_path, *identity, *command], text=True).strip()

    run("init", "-q", "-b", "main")
    (tmp_path / "program.py").write_text("1")
    run("add", "."), run("commit", "-q", "-m", "1")
    run.commit = run("rev-parse", "--short=12", "HEAD")
    run.folder = tmp_path / "results"
    run.folder.mkdir()
    write(run, {})
    run("add", "."), run("commit", "-q", "-m", "2"), run("checkout", "-q", "-b", "sent")
    return run


def write(repository, *changes, machine=CHIP):
    same = ROW | {"process": 1, "commit": repository.commit, "machine": machine}
    rows = [to_cells(same | change) for change in changes]
    pd.DataFrame(rows).to_csv(repository.folder / f"{machine}.csv", index=False)


def check(repository, base=None):
    """Check what changed in results/; returns the problems."""
    found = submit_results.Repository(repository.folder.parent, base)
    return submit_results.check_results(found, found.list_changes())


def test_added_rows_pass_committed_or_not(repository, capsys):
    write(repository, {}, {"seed": 1}, {"seed": 2})
    (repository.folder / "published.csv").touch()
    assert check(repository) == []
    repository("add", "."), repository("commit", "-q", "-m", "3")
    assert check(repository, base="main") == []
    assert capsys.readouterr().out == f"checked: results/{CHIP}.csv\n" * 2
    # The commit of the rows differs from main in results/ only, so rows measured with it are known as well.
    assert submit_results.Repository(repository.folder.parent).is_published(repository("rev-parse", "HEAD"))


def change_program(repository):
    (repository.folder.parent / "program.py").write_text("2")
    repository("commit", "-q", "-a", "-m", "faster")
    write(repository, {}, {"commit": repository("rev-parse", "HEAD")})


CHANGES = {
    "an edited row": (lambda r: write(r, {"seed": 3}), f"{CHIP}.csv: "),
    "a removed file": (lambda r: (r.folder / f"{CHIP}.csv").unlink(), f"{CHIP}.csv: "),
    "a wrong cell": (lambda r: write(r, {}, {"tflops": 9}), "row 2: tflops "),
    "another machine": (lambda r: write(r, {}, {"machine": "another"}), "row 2: machine "),
    "a cell that no row can have": (lambda r: write(r, {}, {"tflops": "x"}), "first line 3"),
    "changed programs": (change_program, "row 2: commit "),
}


@pytest.mark.parametrize(("change", "where"), CHANGES.values(), ids=CHANGES)
def test_changes_that_are_not_added_rows_are_refused_in_one_line(repository, change, where):
    change(repository)
    (line,) = check(repository)
    assert where in line


def test_another_chip_is_refused(repository):
    chip, other = ({"cpu_name": name, "device_name": name, "cpu_count": 8} for name in ("Example A", "Example B"))
    write(repository, chip, machine="desk")
    repository("add", "."), repository("commit", "-q", "-m", "3"), repository("branch", "-f", "main")
    write(repository, chip, chip | {"seed": 1}, other, machine="desk")
    (line,) = check(repository)
    assert "row 3: device_name " in line


def submit(repository, **environ):
    settings = read_settings("submit", {"RESULTS_DIR": str(repository.folder)} | environ)
    return submit_results.submit(settings, submit_results.Repository(repository.folder.parent))


def test_submit_prints_how_to_send_new_rows(repository, capsys):
    write(repository, {}, {"seed": 1})
    write(repository, {"tflops": 9}, machine="another")
    assert submit(repository, MACHINE=CHIP) == []
    assert f"git add results/{CHIP}.csv" in capsys.readouterr().out
    (line,) = submit(repository)
    assert "results/another.csv, row 1" in line
    assert "git" not in capsys.readouterr().out


def test_what_cannot_be_checked_is_told(repository):
    for environ, words in (({}, "no new rows"), ({"MACHINE": "b"}, "b.csv"), ({"RESULTS_DIR": "/c"}, "/c")):
        with pytest.raises(SettingError, match=words):
            submit(repository, **environ)
    with pytest.raises(SettingError, match="BASE='nowhere'"):
        check(repository, base="nowhere")
