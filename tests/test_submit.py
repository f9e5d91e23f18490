"""Added rows pass; a wrong cell or an edited row is refused in one line, at the right place."""

import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest

import submit_results
from bench.records.columns import STATUSES, find_fault
from bench.settings import WORKLOADS, SettingError, read_settings
from tests.fakes import workload_of_command
from tests.rows import FAILED, LLM, MATMUL, ROW, as_text

CHIP = ROW["machine"]
ENDS = {"throughput_low": None, "throughput_high": None}
OF_ONE = ENDS | {"batch_size": 1, "items": 40, "throughput": 6.25, "flops_per_item": None, "tflops": None}
MULTIPLY = MATMUL | OF_ONE | {"batch_size": None, "flops_per_item": 2e11, "tflops": 1.25}
DECODE = LLM | OF_ONE | {"phase": "decode", "bytes_per_step": 1.6e9, "bandwidth": 10}
PIPELINE = {"scope": "end_to_end", "throughput": 640 / 6.5, "tflops": 2.363077} | ENDS
EPOCH = PIPELINE | {"scope": "epoch", "windows": None, "steps_per_window": None, "step_seconds_median": None}


def fault_of(cells):
    row = as_text(ROW | {"process": 1} | cells)
    return find_fault(row) or next(submit_results.find_faults(row, row["machine"], chips=()), "")


@pytest.mark.parametrize("cells", [{}, MULTIPLY, DECODE, PIPELINE, EPOCH, FAILED])
def test_results_and_failures_of_this_program_pass(cells):
    assert fault_of(cells) == ""


# (cells, those that make them wrong): the first of the latter is named.
BAD = [
    ({}, {"source": "https://example.org"}),
    ({}, {"throughput": 320, "throughput_high": 340, "tflops": 7.68}),
    ({}, {"throughput": 100, "throughput_low": 100.1}),
    ({}, {"throughput": 100, "items": None}),
    (PIPELINE, {"throughput": 99}),
    (DECODE, {"bandwidth": 20}),
    ({}, {"status": "fine"}),
    # What no cell may hold, in any file of rows.
    *[({}, {"timestamp": text}) for text in ("9/30/2026 10:00", "2026-09-30 10:00", "yesterday", "")],
    *[({}, {"throughput": text}) for text in ("1,234.5", "13,45", "95.88 \u00b1 0.63", "nan", "1e99", "0", "-5", "")],
    *[({}, {name: "pytorch"}) for name in ("framework", "world_size", "batch_size", "unit", "compile", "rates")],
    *[({}, {"machine": "../x"}), ({}, {"device_name": "x" * 20_000}), ({}, {"os": "\x1b[31m"}), ({}, {"schema": "1"})],
    *[({}, {"run_id": "1.63915E+11"}), ({"source": "https://x"}, {"scope": ""})],
]


@pytest.mark.parametrize(("cells", "change"), BAD)
def test_a_wrong_cell_is_refused(cells, change):
    assert re.match(r"\w*", fault_of(cells | change))[0] == next(iter(change))


def test_each_status_that_a_process_can_have_is_known():
    code = "".join(path.read_text() for path in Path("bench").rglob("*.py"))
    found = re.findall(r'MeasurementError\(\s*"(\w+)"|"status": "(\w+)"', code)
    assert {name for names in found for name in names} - {"", "begun", "word"} <= set(STATUSES)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_unit_of_a_workload_is_known(name):
    unit = workload_of_command(name, read_settings(name).on("cpu")).unit
    assert fault_of({"workload": name, "unit": f"{unit}/s"}) == ""


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
    rows = [as_text(same | change) for change in changes]
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
    "a cell that no row can have": (lambda r: write(r, {}, {"tflops": "x"}), "line 3: tflops="),
    "changed programs": (change_program, "row 2: commit "),
}


@pytest.mark.parametrize(("change", "where"), CHANGES.values(), ids=CHANGES)
def test_changes_that_are_not_added_rows_are_refused_in_one_line(repository, change, where):
    change(repository)
    (line,) = check(repository)
    assert where in line


def test_another_chip_is_refused_unless_the_name_is_the_users_own(repository):
    chip, other = ({"cpu_name": name, "device_name": name, "cpu_count": 8} for name in ("Example A", "Example B"))
    for machine, count in (("example-a-8-cores", 1), ("desk", 0)):
        write(repository, chip, machine=machine)
        repository("add", "."), repository("commit", "-q", "-m", "3"), repository("branch", "-f", "main")
        write(repository, chip, chip | {"seed": 1}, other, machine=machine)
        problems = check(repository)
        assert len(problems) == count
        assert all("row 3: device_name " in line for line in problems)


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
