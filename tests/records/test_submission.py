"""Added rows pass; each wrong cell, edited row or foreign file is refused in one line, at the right place."""

import csv
import os
import subprocess

import pytest

from bench.records import submission
from bench.records.columns import COLUMNS
from bench.settings import read_settings
from tests.rows import GPU, LLM, MATMUL, ROW, as_text

CHIP = ROW["machine"]
ENDS = {"throughput_low": None, "throughput_high": None}
OF_ONE = ENDS | {"batch_size": 1, "items": 40, "throughput": 6.25, "flops_per_item": None, "tflops": None}
MULTIPLY = MATMUL | OF_ONE | {"batch_size": None, "flops_per_item": 2e11, "tflops": 1.25}
DECODE = LLM | OF_ONE | {"phase": "decode", "bytes_per_step": 1.6e9, "bandwidth": 10}
PIPELINE = {"scope": "end_to_end", "throughput": 640 / 6.5, "tflops": 2.363077} | ENDS
EPOCH = {"scope": "epoch", "windows": None, "steps_per_window": None, "step_seconds_median": None}
H200 = GPU | {"device_name": "NVIDIA H200"}
FAILED = {name: None for name, column in COLUMNS.items() if column.role == "result"}
FAILED |= {"status": "out_of_memory", "note": "CUDA out of memory"}


def text(*cells):
    """Return a row of text, of these cells."""
    row = dict(ROW)
    for more in cells:
        row |= more
    return as_text(row)


def fault_of(row, names=()):
    return next(submission.find_faults(row, "example-gpu" if row["device"] == "cuda" else CHIP, names), None)


GOOD = {
    "a model": [],
    "a matmul": [MULTIPLY],
    "decode": [DECODE],
    "NUM_IMAGES": [PIPELINE, {"scope": "device", "stop_reason": "num_images", "items": 656, "seconds": 6.6625}],
    "an epoch": [PIPELINE, EPOCH],
    "a failure": [FAILED],
}


@pytest.mark.parametrize("cells", GOOD.values(), ids=GOOD)
def test_results_and_failures_of_this_program_pass(cells):
    assert fault_of(text(*cells), names=["example", "alice"]) is None


# The first cell is the one that is refused.
BAD = [
    ([], {"machine": "another"}),
    ([], {"source": "https://example.org"}),
    ([], {"throughput": ""}),
    ([], {"throughput": "nan"}),
    ([], {"seconds": 0}),
    ([], {"allocator": "LD_PRELOAD=/home/alice/lib.so"}),
    ([FAILED], {"note": "of Alice's disk"}),
    ([], {"throughput": 320, "throughput_high": 340, "tflops": 7.68}),
    ([], {"throughput": 100, "throughput_low": 100.1}),
    ([PIPELINE], {"throughput": 100}),
    ([DECODE], {"bandwidth": 20}),
    ([H200], {"throughput": 100, "tflops": 320, "flops_per_item": 3.2e12}),  # more than 67 x 1.3 x 2.25
]


@pytest.mark.parametrize(("cells", "change"), BAD, ids=[str(change) for _, change in BAD])
def test_a_wrong_cell_is_refused(cells, change):
    fault = fault_of(text(*cells, change), names=["alice", "example"])
    assert fault is not None
    assert fault[0] == next(iter(change))


@pytest.fixture
def repository(tmp_path):
    """A repository with one machine's file on main, checked out on the branch of a pull request."""

    def run(*command):
        names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        where = ["git", "-C", str(tmp_path), "-c", "commit.gpgsign=false"]
        return subprocess.run([*where, *command], check=True, capture_output=True, text=True, env=os.environ | names)

    run("init", "-q", "-b", "main")
    (tmp_path / "program.py").write_text("1")
    run("add", "."), run("commit", "-q", "-m", "1")
    run.commit = run("rev-parse", "--short=12", "HEAD").stdout.strip()
    run.folder = tmp_path / "results"
    run.folder.mkdir()
    write(run, {})
    run("add", "."), run("commit", "-q", "-m", "2"), run("checkout", "-q", "-b", "sent")
    return run


def write(repository, *changes, machine=CHIP):
    """Write a machine's file: a row for each of the changes. One column is missing, as in files of older programs."""
    with open(repository.folder / f"{machine}.csv", "w", newline="") as file:
        table = csv.DictWriter(file, [name for name in COLUMNS if name != "note"], extrasaction="ignore")
        table.writeheader()
        same = {"commit": repository.commit, "machine": machine}
        table.writerows(text(same, change) for change in changes)


def check(repository):
    return submission.check_results(submission.Repository(repository.folder.parent, "main"))


def test_added_rows_pass_committed_or_not(repository):
    write(repository, {}, {"seed": 1}, {"seed": 2})
    assert check(repository) == (2, [])
    (repository.folder / "index.html").write_text("")
    repository("add", "."), repository("commit", "-q", "-m", "3")
    assert check(repository) == (2, [])
    # The commit of the rows differs from main in results/ only, so rows measured with it are known as well.
    commit = repository("rev-parse", "HEAD").stdout.strip()
    assert submission.Repository(repository.folder.parent, "main").find_fault(commit) is None


def change_program(repository):
    (repository.folder.parent / "program.py").write_text("2")
    repository("commit", "-q", "-a", "-m", "faster")
    write(repository, {}, {"commit": repository("rev-parse", "HEAD").stdout.strip()})


CHANGES = {
    "an edited row": (lambda r: write(r, {"seed": 3}), f"{CHIP}.csv, line 2: "),
    "a removed file": (lambda r: (r.folder / f"{CHIP}.csv").unlink(), f"{CHIP}.csv"),
    "a wrong cell": (lambda r: write(r, {}, {"tflops": 9}), "line 3: tflops='9'"),
    "changed programs": (change_program, "line 3: commit="),
}


@pytest.mark.parametrize(("change", "where"), CHANGES.values(), ids=CHANGES)
def test_changes_that_are_not_added_rows_are_refused_in_one_line(repository, change, where):
    change(repository)
    _, (line,) = check(repository)
    assert where in line
    assert "\n" not in line


def test_submit_prints_how_to_send_this_machines_rows(repository, monkeypatch, capsys):
    for name, value in {"RESULTS_DIR": str(repository.folder), "MACHINE": CHIP, "LOGNAME": "alice"}.items():
        monkeypatch.setenv(name, value)
    for cells, passes in (({"seed": 1}, True), ({"allocator": "LD_PRELOAD=alice.so"}, False)):
        write(repository, {}, cells)
        problems = submission.submit(read_settings("submit"), submission.Repository(repository.folder.parent))
        assert (problems == []) == passes
        assert (f"results/{CHIP}.csv" in capsys.readouterr().out) == passes
