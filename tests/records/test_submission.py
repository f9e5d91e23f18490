"""Added rows pass; each wrong cell, edited row or foreign file is refused in one line, at the right place."""

import csv
import os
import subprocess

import pytest

from bench.records import submission
from bench.records.columns import COLUMNS, SCHEMA
from bench.settings import SettingError, read_settings

CHIP = "some-cpu"
COMMON = {
    **{"schema": SCHEMA, "method_version": 2, "run_id": "0123456789ab", "timestamp": "2026-11-20T11:34:42+00:00"},
    **{"status": "ok", "machine": CHIP, "device": "cpu", "device_name": "Some Xeon", "cpu_name": "Some Xeon"},
    **{"cpu_count": 2, "os": "Debian, Linux 6.18", "commit": "0" * 12, "framework": "torch", "precision": "float32"},
}
IMAGE = {
    **{"workload": "image", "model": "resnet50", "phase": "inference", "scope": "device", "batch_size": 16},
    **{"unit": "images/s", "throughput": 32, "throughput_low": 30, "throughput_high": 34},
    **{"step_seconds_median": 0.5, "windows": 20, "steps_per_window": 2, "items": 640, "seconds": 20.2},
    **{"flops_per_item": 8e9, "tflops": 0.256},
}
DECODE = {"workload": "llm", "model": "smollm2-135m", "phase": "decode", "unit": "tokens/s"}
DECODE |= {"bytes_per_step": 5e8, "bandwidth": 1, "flops_per_item": "", "tflops": ""}
PIPELINE = {"scope": "end_to_end", "throughput": 31.6832, "tflops": 0.253465}
EPOCH = {"scope": "epoch", "windows": "", "steps_per_window": "", "step_seconds_median": ""}
MATMUL = {"workload": "matmul", "model": "matmul", "batch_size": "", "items": 40, "throughput": 2, "unit": "matmuls/s"}
MATMUL |= {"throughput_low": "", "throughput_high": "", "flops_per_item": 2e11, "tflops": 0.4}
H200 = {"machine": "nvidia-h200", "device": "cuda", "device_name": "NVIDIA H200"}
FAILED = {"status": "out_of_memory", "note": "CUDA out of memory", "workload": "image", "model": "resnet50"}


def text(*cells):
    """Return a row of text, of these cells."""
    row = dict.fromkeys(COLUMNS, "") | COMMON
    for more in cells:
        row |= more
    return {name: str(value) for name, value in row.items()}


def fault_of(row, names=()):
    return next(submission.find_faults(row, "nvidia-h200" if row["device"] == "cuda" else CHIP, names), None)


GOOD = {
    "a model": [IMAGE],
    "decode": [IMAGE, MATMUL, DECODE, {"batch_size": 1}],
    "NUM_IMAGES": [IMAGE, PIPELINE, {"scope": "device", "stop_reason": "num_images", "items": 656, "seconds": 20.7053}],
    "an epoch": [IMAGE, PIPELINE, EPOCH],
    "a failure": [FAILED, {"note": "Command 'gcc -I~/bench/include' failed"}],
}


@pytest.mark.parametrize("cells", GOOD.values(), ids=GOOD)
def test_results_and_failures_of_this_program_pass(cells):
    assert fault_of(text(*cells), names=["xeon", "alice"]) is None


# The first cell is the one that is refused.
BAD = [
    ([IMAGE], {"machine": "another"}),
    ([IMAGE], {"source": "https://example.org"}),
    ([IMAGE], {"throughput": ""}),
    ([IMAGE], {"throughput": "nan"}),
    ([IMAGE], {"seconds": 0}),
    ([IMAGE], {"allocator": "LD_PRELOAD=/home/alice/lib.so"}),
    ([FAILED], {"note": "of Alice's disk"}),
    ([IMAGE], {"throughput": 320, "throughput_high": 340, "tflops": 2.56}),
    ([IMAGE], {"throughput": 32, "throughput_low": 33}),
    ([IMAGE, PIPELINE], {"throughput": 32}),
    ([IMAGE, DECODE], {"bandwidth": 2}),
    ([IMAGE, H200], {"throughput": 32, "tflops": 320, "flops_per_item": 1e13}),  # more than 67 x 1.3 x 2.25
]


@pytest.mark.parametrize(("cells", "change"), BAD, ids=[str(change) for _, change in BAD])
def test_a_wrong_cell_is_refused(cells, change):
    fault = fault_of(text(*cells, change), names=["alice", "xeon"])
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
        table.writerows(text(IMAGE, same, change) for change in changes)


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
    monkeypatch.delenv("MACHINE")  # then it is the file with new rows, if only one has any
    own = submission.Repository(repository.folder.parent)
    assert len(submission.submit(read_settings("submit"), own)) == 1
    write(repository, {}, machine="another")
    with pytest.raises(SettingError, match=f"{CHIP} or another|another or {CHIP}"):
        submission.submit(read_settings("submit"), own)
