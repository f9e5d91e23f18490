"""Added rows pass; each wrong cell, edited row or foreign file is refused in one line, at the right place."""

import csv
import os
import re
import subprocess
from pathlib import Path

import pytest

import submit_results
from bench.records import results
from bench.records.columns import COLUMNS, STATUSES, find_fault
from bench.settings import WORKLOADS, SettingError, read_settings
from tests.fakes import workload_of_command
from tests.rows import GPU, LLM, MATMUL, PEAK, ROW, as_text

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
    return find_fault(row) or next(
        submit_results.find_faults(row, "example-gpu" if row["device"] == "cuda" else CHIP, names), None
    )


GOOD = {
    "a model": [],
    "a matmul": [MULTIPLY],
    "decode": [DECODE],
    "NUM_IMAGES": [PIPELINE, {"scope": "device", "stop_reason": "num_images", "items": 656, "seconds": 6.6625}],
    "an epoch": [PIPELINE, EPOCH],
    "a failure": [FAILED, {"note": "Command 'gcc -I~/bench/include' failed"}],
}


@pytest.mark.parametrize("cells", GOOD.values(), ids=GOOD)
def test_results_and_failures_of_this_program_pass(cells):
    assert fault_of(text(*cells), names=["example", "alice"]) is None


# The first cell is the one that is refused.
BAD = [
    ([], {"machine": "another"}),
    ([], {"source": "https://example.org"}),
    ([], {"allocator": "LD_PRELOAD=/home/alice/lib.so"}),
    ([FAILED], {"note": "of Alice's disk"}),
    ([], {"throughput": 320, "throughput_high": 340, "tflops": 7.68}),
    ([], {"throughput": 100, "throughput_low": 100.1}),
    ([PIPELINE], {"throughput": 100}),
    ([DECODE], {"bandwidth": 20}),
    ([H200], {"throughput": 100, "tflops": 500, "flops_per_item": 5e12}),  # more than 67 x 1.3 x 5.06
    ([], {"timestamp": "2099-01-01T00:00:00+00:00"}),
    ([], {"device_name": "NVIDIA H200"}),  # which is not a CPU
    ([], {"status": "fine"}),
    ([], {"throughput": 100, "process_rates": "1 2 3"}),
    ([], {"throughput": 100, "rates": "101 102"}),
]


@pytest.mark.parametrize(("cells", "change"), BAD, ids=[str(change) for _, change in BAD])
def test_a_wrong_cell_is_refused(cells, change):
    fault = fault_of(text(*cells, change), names=["alice", "example"])
    assert fault is not None
    assert fault[0] == next(iter(change))


def test_each_status_that_a_process_can_have_is_known():
    code = "".join(path.read_text() for path in Path("bench").rglob("*.py"))
    found = re.findall(r'MeasurementError\(\s*"(\w+)"|"status": "(\w+)"', code)
    assert {name for names in found for name in names} - {"", "begun"} <= set(STATUSES)


@pytest.mark.parametrize("sign", "=+-@")
def test_a_formula_is_refused_in_every_text_cell(sign):
    names = [name for name, column in COLUMNS.items() if column.holds in ("text", "long")]
    faults = [fault_of(text({name: f"{sign}cmd"})) for name in names]
    assert [fault and fault[0] for fault in faults] == names


# What no cell may hold, in any file of rows: the first column is named.
CELLS = [
    *[{"timestamp": text} for text in ("9/30/2026 10:00", "2026-09-30 10:00", "9999", "yesterday", "")],
    *[{"throughput": text} for text in ("1,234.5", "13,45", "95.88 \u00b1 0.63", "nan", "1e99", "0", "-5", "")],
    *[{"throughput": "0,0018"}, {"run_id": "1.63915E+11"}, {"elapsed_seconds": "", "scope": "sustained"}],
    *[{"tflops": ""} | {name: PEAK[name] for name in ("workload", "model")}, {"machine": "../x"}, {"status": ""}],
    *[{"framework": "pytorch"}, {"world_size": "2.5"}, {"batch_size": "sixteen"}, {"depth": "inf"}],
    *[{"unit": "bananas/s"}, {"method_version": "999"}, {"device_name": "x" * 20_000}, {"os": "\x1b[31m"}],
    *[{"compile": "true"}, {"process_rates": "13,65 13,35"}, {"schema": "1"}],
    *[{name: text, "source": "https://x"} for name, text in (("timestamp", "12/31/2021"), ("scope", ""))],
    {"batch_size": "", "source": "https://x"},
]


@pytest.mark.parametrize("cells", CELLS, ids=[str(cells)[:50] for cells in CELLS])
def test_a_cell_that_cannot_be_is_named(cells):
    fault = find_fault(text(cells))
    assert fault is not None
    assert fault[0] == next(iter(cells))


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_unit_of_a_workload_is_known(name):
    unit = workload_of_command(name, read_settings(name).on("cpu")).unit
    assert fault_of(text({"workload": name, "unit": f"{unit}/s"})) is None


PAGE = '<script id="data">{}</script><script>draw()</script>'


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
    (run.folder / "index.html").write_text(PAGE)
    (run.folder / "README.md").write_text("![best](plots/best.png)")
    (run.folder / "published.csv").write_text(Path("results/published.csv").read_text())
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
    return submit_results.check_results(submit_results.Repository(repository.folder.parent, "main"))


def test_added_rows_pass_committed_or_not(repository):
    write(repository, {}, {"seed": 1}, {"seed": 2})
    assert check(repository) == (2, [])
    repository("add", "."), repository("commit", "-q", "-m", "3")
    assert check(repository) == (2, [])
    # The commit of the rows differs from main in results/ only, so rows measured with it are known as well.
    commit = repository("rev-parse", "HEAD").stdout.strip()
    assert submit_results.Repository(repository.folder.parent, "main").find_fault(commit) is None


def change_program(repository):
    (repository.folder.parent / "program.py").write_text("2")
    repository("commit", "-q", "-a", "-m", "faster")
    write(repository, {}, {"commit": repository("rev-parse", "HEAD").stdout.strip()})


CHANGES = {
    "an edited row": (lambda r: write(r, {"seed": 3}), f"{CHIP}.csv, line 2: "),
    "a removed file": (lambda r: (r.folder / f"{CHIP}.csv").unlink(), f"{CHIP}.csv"),
    "a wrong cell": (lambda r: write(r, {}, {"tflops": 9}), "line 3: tflops='9'"),
    "a process twice": (lambda r: write(r, {}, *2 * [{"process": 1, "seed": 1}]), "line 4: process='1'"),
    "a long cell": (lambda r: write(r, {}, {"device_name": "x" * 20_000}), "line 3: device_name="),
    "changed programs": (change_program, "line 3: commit="),
    "pictures too": (lambda r: [write(r, {}, {"seed": 1}), (r.folder / "README.md").write_text("")], "README.md"),
    "what git ignores": (lambda r: [(r.folder / ".gitignore").write_text("*"), r("add", "-f", ".")], ".gitignore"),
}


@pytest.mark.parametrize(("change", "where"), CHANGES.values(), ids=CHANGES)
def test_changes_that_are_not_added_rows_are_refused_in_one_line(repository, change, where):
    change(repository)
    _, (line,) = check(repository)
    assert where in line
    assert "\n" not in line
    assert len(line) < 400


PASSWD = Path("/etc/passwd")
OTHERS = [  # (file in results/, its text, target or (pattern, new text), what the only line says or "" if it passes)
    ("run.sh", "echo", "run.sh'"),
    ("a\x1b.csv", "x", r"a\x1b.csv'"),
    ("b.csv", PASSWD, "b.csv'"),
    (f"{CHIP}.csv", PASSWD, f"{CHIP}.csv'"),
    ("plots", Path("/etc"), "plots'"),
    ("index.html", ("{}", '{"a": 1}'), ""),
    ("index.html", ("{}", "</script><script>x"), "index.html"),
    ("index.html", ("draw", "send"), "index.html"),
    ("README.md", ("^", "![a](plots/a.png)\n\n"), ""),
    ("README.md", ("^", "[best](https://x) "), "README.md"),
    ("published.csv", (",2254.9,", ",2255,"), ""),
    ("published.csv", (",2254.9,", ',"2254,9",'), "throughput="),
    ("published.csv", (",150000,66.5212,", ",150000,,"), "throughput="),
    ("published.csv", ("https:[^,]*", ""), "source="),
]


@pytest.mark.parametrize(("name", "content", "words"), OTHERS)
def test_other_files_are_checked(repository, name, content, words):
    path = repository.folder / name
    if isinstance(content, Path):
        path.unlink(missing_ok=True)
        path.symlink_to(content)
    else:
        path.write_text(re.sub(*content, path.read_text(), count=1) if isinstance(content, tuple) else content)
    _, problems = check(repository)
    assert len(problems) == bool(words)
    assert all(words in line and "root:" not in line for line in problems)


def test_another_chip_is_refused_unless_the_name_is_the_users_own(repository):
    chip, other = ({"cpu_name": name, "device_name": name, "cpu_count": 8} for name in ("Example A", "Example B"))
    for machine, count in (("example-a-8-cores", 1), ("desk", 0)):
        write(repository, chip, machine=machine)
        repository("add", "."), repository("commit", "-q", "-m", "3"), repository("branch", "-f", "main")
        write(repository, chip, chip | {"seed": 1}, other, machine=machine)
        _, problems = check(repository)
        assert len(problems) == count
        assert all("line 4: device_name=" in line for line in problems)


@pytest.fixture
def submit(repository, monkeypatch):
    """Write a machine's file with these changes of rows, and submit it; returns the problems."""
    for name, value in {"RESULTS_DIR": str(repository.folder), "MACHINE": CHIP, "LOGNAME": "alice"}.items():
        monkeypatch.setenv(name, value)

    def write_and_submit(*changes):
        write(repository, *changes)
        return submit_results.submit(read_settings("submit"), submit_results.Repository(repository.folder.parent))

    return write_and_submit


def test_submit_prints_how_to_send_this_machines_rows(submit, repository, capsys):
    assert submit({}, {"seed": 1}) == []
    assert f"results/{CHIP}.csv" in capsys.readouterr().out
    assert submit({}, {"allocator": "LD_PRELOAD=alice.so"}) != []
    assert capsys.readouterr().out == ""


def test_submit_counts_disturbed_rows_that_were_not_measured_again(submit, capsys):
    busy = {"flags": "drift contended", "seed": 1}
    submit({}, busy)
    assert "1 of 1 rows are disturbed (contended)" in capsys.readouterr().out
    submit({}, busy, {"seed": 2})
    assert "disturbed" not in capsys.readouterr().out


def test_the_printed_line_appends_rows_of_another_folder(submit, repository, monkeypatch, tmp_path, capsys):
    ours, repository.folder = repository.folder, tmp_path / "my rows"
    repository.folder.mkdir()
    monkeypatch.delenv("MACHINE")
    monkeypatch.setenv("RESULTS_DIR", str(repository.folder))
    assert submit({"seed": 1}, {"seed": 2}) == []
    (line,) = re.findall(r"^1\. (cat .*)", capsys.readouterr().out, re.MULTILINE)
    before = len(results.read(ours / f"{CHIP}.csv"))
    subprocess.run(line, shell=True, check=True)
    assert len(results.read(ours / f"{CHIP}.csv", pytest.fail)) == before + 2
    repository.folder = ours
    assert check(repository) == (2, [])


def test_without_machine_the_only_file_with_new_rows_is_sent(submit, repository, monkeypatch):
    monkeypatch.delenv("MACHINE")
    assert submit({}, {"seed": 1}) == []
    write(repository, {}, machine="another")
    with pytest.raises(SettingError, match=f"{CHIP} or another|another or {CHIP}"):
        submit({}, {"seed": 1})
