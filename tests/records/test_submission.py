"""Rows that are sent: the real ones pass, and each bad submission is refused at the right cell."""

import csv
import os
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bench.records import physics, submission
from bench.records.columns import COLUMNS
from bench.settings import read_settings

CHIP = "intel-xeon-2-cores"
FILES = {
    path.stem: submission.parse(path.read_text())[0]
    for path in Path("results").glob("*.csv")
    if path.stem != "published"
}
NOW = max(datetime.fromisoformat(row["timestamp"]) for rows in FILES.values() for _, row in rows)
# Lines of the file of CHIP: 2 to 9 are matmuls in float32, 31 one in bfloat16, 36 a copy; 39 to 41 ResNet-50 inference
# (device, input, end_to_end), 42 its training, 46 to 49 an MLP's training and its parts.
ROWS = dict(FILES[CHIP])
DECODE = next(row for _, row in FILES["amd-epyc-2-cores"] if row["phase"] == "decode")


def faster(row, factor, devices=1, **cells):
    """Return a row with `factor` times the rate, on a number of devices, and everything else consistent with it."""
    rates = [name for name in ("throughput", "throughput_low", "throughput_high", "tflops") if row[name]]
    times = {name: float(row[name]) * factor for name in rates}
    shorter = {name: float(row[name]) / factor * devices for name in ("step_seconds_median", "step_seconds_min")}
    text = {name: f"{value:.6g}" for name, value in (times | shorter).items()}
    text["items"] = f"{float(row['items']) * factor:.15g}"
    text["steps_per_window"] = str(int(row["steps_per_window"]) * factor // devices)
    return row | text | {"world_size": str(devices), "step_seconds_p95": ""} | cells


def check(rows, machine=CHIP, names=()):
    """Check rows as lines 2, 3 ... of a machine's file, with all real rows of other runs as the known ones."""
    runs = {row["run_id"] for row in rows}
    known = [row for each in FILES.values() for _, row in each if row["run_id"] not in runs]
    return physics.check_rows(list(enumerate(rows, 2)), machine, NOW, known, names)


@pytest.mark.parametrize("machine", FILES)
def test_the_rows_in_results_pass(machine):
    known = [row for name, rows in FILES.items() if name != machine for _, row in rows]
    assert physics.check_rows(FILES[machine], machine, NOW, known) == []


def h200(row, factor, **cells):
    gpu = {"machine": "nvidia-h200", "device": "cuda", "device_name": "NVIDIA H200", "run_id": "0123456789ab"}
    return faster(row, factor, **(gpu | cells))


OUT_OF_MEMORY = "CUDA out of memory. See (https://docs.pytorch.org/docs/stable/notes/cuda.html) and /dev/shm/x"
GOOD = {
    "an H200": [h200(ROWS[9], 200), h200(ROWS[39], 100), h200(ROWS[42], 200)],
    "eight of them": [h200(ROWS[39], 3200, devices=8)],
    "watts": [h200(ROWS[39], 100, power_watts="600", joules_per_item=f"{600 / 1690:.6g}", power_scope="gpu board")],
    "failures": [ROWS[13], {**ROWS[13], "status": "out_of_memory", "note": OUT_OF_MEMORY, "run_id": "0" * 12}],
    "a system's allocator": [ROWS[39] | {"allocator": "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4"}],
}


@pytest.mark.parametrize("rows", GOOD.values(), ids=GOOD)
def test_good_submissions_pass(rows):
    assert check(rows, rows[0]["machine"], names=("xeon", "user")) == []


def waited_for_nothing(side):
    """Return a matmul of 0.18 ms, whatever its size, as published once: 11,920 TFLOP/s at 10,240 x 10,240."""
    flops, size = 2 * side**3, f"{side}x{side}x{side}"
    rate, row = 1 / 0.00018, h200(ROWS[31], 1, machine="nvidia-new", device_name="NVIDIA New")
    cells = {"throughput": rate, "throughput_low": rate * 0.999, "throughput_high": rate, "tflops": rate * flops / 1e12}
    cells |= {"step_seconds_median": 0.00018, "step_seconds_min": 0.00018, "seconds": 0.00018 * 150 * 20}
    cells = {name: f"{value:.6g}" for name, value in cells.items()}
    counts = {"items": 3000, "windows": 20, "steps_per_window": 150, "flops_per_item": flops}
    return row | cells | {name: str(value) for name, value in counts.items()} | {"matrix_size": size}


later = (NOW + timedelta(days=1)).isoformat(timespec="seconds")
# Each submission with the lines and columns that are refused.
BAD = {
    "11,920 TFLOP/s": (
        list(map(waited_for_nothing, (512, 1024, 4096, 8192, 10240))),
        [(4, "step_seconds_median"), (5, "tflops"), (6, "tflops")],
    ),
    "above the chip's peak": ([h200(ROWS[39], 20_000)], [(2, "tflops")]),
    "more than two cores can do": ([ROWS[8], faster(ROWS[31], 20)], [(3, "tflops")]),
    "faster than memory": ([faster(ROWS[36], 20)], [(2, "throughput")]),
    "ten times the rate": ([ROWS[39] | {"throughput": "168.629", "throughput_high": "170"}], [(2, "throughput")]),
    "rate and step, not the items": (
        [faster(ROWS[39], 10, items=ROWS[39]["items"], steps_per_window="1")],
        [(2, "throughput")],
    ),
    "fewer seconds": ([ROWS[39] | {"seconds": "1.5"}], [(2, "seconds")]),
    "a rate outside its interval": ([ROWS[39] | {"throughput_low": "17"}], [(2, "throughput")]),
    "another batch size": ([ROWS[36], ROWS[42] | {"batch_size": "32"}], [(3, "items")]),
    "TFLOP/s": ([ROWS[39] | {"tflops": "0.2"}], [(2, "tflops")]),
    "no FLOPs": ([ROWS[9] | {"tflops": "", "flops_per_item": ""}], [(2, "flops_per_item")]),
    "FLOPs of another model": (
        [ROWS[46] | {name: f"{float(ROWS[46][name]) * 2:.15g}" for name in ("flops_per_item", "tflops")}],
        [(2, "flops_per_item")],
    ),
    "parameters": ([ROWS[39], ROWS[42] | {"parameters": "25557033"}], [(3, "parameters")]),
    "bytes x time": ([DECODE | {"machine": CHIP, "cpu_name": "Xeon", "bandwidth": "11.8"}], [(2, "bandwidth")]),
    "watts x seconds": ([ROWS[39] | {"power_watts": "100", "joules_per_item": "1"}], [(2, "power_watts")]),
    "three times all other runs": ([h200(ROWS[46], 100), h200(ROWS[46], 400, run_id="1" * 12)], [(3, "throughput")]),
    "TF32 as float32": ([ROWS[39] | {"measured_precision": "tf32"}], [(2, "measured_precision")]),
    "the future": ([ROWS[39] | {"timestamp": later}], [(2, "timestamp")]),
    "no order": ([ROWS[40], ROWS[39]], [(3, "timestamp")]),
    "no time to measure": ([ROWS[39], ROWS[41] | {"timestamp": ROWS[39]["timestamp"]}], [(3, "seconds")]),
    "a flag": ([ROWS[39] | {"flags": "drift great"}], [(2, "flags")]),
    "a method of the future": ([ROWS[39] | {"method_version": "99"}], [(2, "method_version")]),
    "another machine's row": ([ROWS[39] | {"machine": "amd-epyc-2-cores"}], [(2, "machine")]),
    "twice the same row": ([ROWS[39], ROWS[39]], [(3, "run_id")]),
    "not a number": ([ROWS[39] | {"throughput": "nan"}], [(2, "throughput")]),
    "a huge number": ([ROWS[39] | {"batch_size": "1" + "0" * 400}], [(2, "batch_size")]),
    "a terminal's colours": ([ROWS[39] | {"note": "\x1b[31mred"}], [(2, "note")]),
    "a path": ([ROWS[39] | {"allocator": "LD_PRELOAD=/home/alice/lib.so"}], [(2, "allocator")]),
    "a link": ([ROWS[39] | {"note": "see https://example.org/x"}], [(2, "note")]),
    "an e-mail address": ([ROWS[39] | {"note": "ask alice@example.org"}], [(2, "note")]),
    "a card's serial": ([ROWS[39] | {"device_name": "GPU-1b2c3d4e-0000-1111-2222-333344445555"}], [(2, "device_name")]),
    "a network address": ([ROWS[39] | {"note": "rank 1 at 10.1.2.3:29500 was lost"}], [(2, "note")]),
    "the user's name": ([ROWS[39] | {"note": "of Alice"}], [(2, "note")]),
}


@pytest.mark.parametrize(("rows", "refused"), BAD.values(), ids=BAD)
def test_bad_submissions_are_refused_at_the_right_cell(rows, refused):
    machine = rows[0]["machine"] if rows[0]["device"] == "cuda" else CHIP
    found = check(rows, machine, names=("alice", "xeon"))
    assert [(problem.line, problem.column) for problem in found] == refused
    assert all("\n" not in problem.describe("a.csv") and problem.fix for problem in found)


def test_a_copied_measurement_is_refused():
    copy = ROWS[39] | {"run_id": "1" * 12, "timestamp": "2026-11-22T20:00:00+00:00"}
    assert [problem.column for problem in check([copy])] == ["throughput"]


@pytest.fixture
def repository(tmp_path):
    """A repository with one machine's file on main, checked out on the branch of a pull request."""

    def run(*command):
        names = {f"GIT_{who}_{what}": "2026-11-20T00:00:00Z" if what == "DATE" else "a@b"
                 for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL", "DATE")}  # fmt: skip
        where = ["git", "-C", str(tmp_path), "-c", "commit.gpgsign=false"]
        return subprocess.run([*where, *command], check=True, capture_output=True, text=True, env=os.environ | names)

    run("init", "-q", "-b", "main")
    (tmp_path / "program.py").write_text("1")
    run("add", "."), run("commit", "-q", "-m", "1")
    run.commit = run("rev-parse", "--short=12", "HEAD").stdout.strip()
    run.folder = tmp_path / "results"
    run.folder.mkdir()
    write(run, CHIP, 39)
    run("add", "."), run("commit", "-q", "-m", "2"), run("checkout", "-q", "-b", "sent")
    return run


def write(repository, machine, *lines, **cells):
    """Write the file of a machine with some rows of CHIP's."""
    columns = [name for name in COLUMNS if name != "canary_seconds" or len(lines) > 1]  # an older program had fewer
    with open(repository.folder / f"{machine}.csv", "w", newline="") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore")
        table.writeheader()
        for line in lines:
            row = ROWS[line] | {"commit": repository.commit, "machine": machine}
            table.writerow(row | (cells if line == lines[-1] else {}))


def check_all(repository, head=None):
    return submission.check_results(submission.Repository(repository.folder.parent, "main", head))


def test_added_rows_pass_in_the_folder_and_in_a_commit(repository):
    write(repository, CHIP, 39, 40, 46)
    (repository.folder / "index.html").write_text("")
    lines, has_failed = check_all(repository)
    assert not has_failed, lines
    assert "2 new rows" in lines[0]
    assert "index.html" in lines[1]
    repository("add", "."), repository("commit", "-q", "-m", "3")
    write(repository, CHIP)  # only the commit counts
    assert not check_all(repository, "HEAD")[1]
    # The commit of the rows differs from main in results/ only, so rows measured with it are known as well.
    repository.commit = repository("rev-parse", "HEAD").stdout.strip()
    assert submission.Repository(repository.folder.parent).find_fault(repository.commit) == ""


CHANGES = {
    "an edited row": (lambda r: write(r, CHIP, 39, throughput="17"), "line 2: throughput="),
    "a removed row": (lambda r: write(r, CHIP), "line 2: run_id="),
    "a row before the old ones": (lambda r: write(r, CHIP, 40, 39), "line 2: "),
    "a removed file": (lambda r: (r.folder / f"{CHIP}.csv").unlink(), f"{CHIP}.csv"),
    "two machines": (lambda r: (write(r, "a", 40), write(r, "b", 41)), "a.csv, results/b.csv"),
    "another file": (lambda r: (r.folder / "run.sh").write_text("true"), "results/run.sh"),
    "published figures": (lambda r: write(r, "published", 40), "results/published.csv"),
    "a folder": (lambda r: ((r.folder / "b").mkdir(), (r.folder / "b" / "c.csv").write_text("")), "results/b/c.csv"),
    "an unknown commit": (lambda r: write(r, CHIP, 39, 40, commit="0123456789ab"), "line 3: commit="),
    "changed programs": (lambda r: write(r, CHIP, 39, 40, commit=f"{r.commit}-dirty"), "line 3: commit="),
    "before its commit": (
        lambda r: write(r, CHIP, 39, 40, timestamp="2026-11-01T00:00:00+00:00"),
        "line 3: timestamp=",
    ),
    "a foreign header": (lambda r: (r.folder / "a.csv").write_text('"a\n::b",c\n1,2\n'), "a.csv, line 1: header="),
    "half a row": (lambda r: (r.folder / f"{CHIP}.csv").open("a").write("1,2\n"), "line 3: "),
    "no row": (lambda r: (r.folder / "a.csv").write_text(",".join(COLUMNS) + "\n"), "a.csv, line 1: "),
}


@pytest.mark.parametrize(("change", "where"), CHANGES.values(), ids=CHANGES)
def test_changes_that_are_not_added_rows_are_refused(repository, change, where):
    change(repository)
    lines, has_failed = check_all(repository)
    assert has_failed
    assert any(where in line for line in lines), lines
    assert not any("\n" in line for line in lines)


def test_a_commit_with_other_programs_is_unknown(repository):
    (repository.folder.parent / "program.py").write_text("2")
    repository("commit", "-q", "-a", "-m", "faster")
    commit = repository("rev-parse", "HEAD").stdout.strip()
    assert "programs" in submission.Repository(repository.folder.parent).find_fault(commit)


@pytest.mark.parametrize(("cells", "status"), [({}, 0), ({"tflops": "9"}, 1)])
def test_submit_prints_the_text_and_the_steps_and_sends_nothing(repository, monkeypatch, capsys, cells, status):
    write(repository, CHIP, 39, 40, 42, **cells)
    monkeypatch.setenv("RESULTS_DIR", str(repository.folder))
    monkeypatch.setenv("MACHINE", CHIP)
    before = repository("log", "--all", "--oneline").stdout
    assert submission.submit(read_settings("submit"), submission.Repository(repository.folder.parent)) == status
    said = capsys.readouterr()
    assert repository("log", "--all", "--oneline").stdout == before
    if status:
        assert "line 4: tflops=" in said.err
    else:
        assert f"Rows of {CHIP}" in said.out
        assert "resnet50" in said.out
        assert len([line for line in said.out.splitlines() if line[:2] in ("1.", "2.", "3.")]) == 3


def test_the_name_of_the_user_is_not_sent(repository, monkeypatch):
    write(repository, CHIP, 39, 40, note="made by alice")
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setenv("LOGNAME", "alice")
    checked = submission.Repository(repository.folder.parent, "main")
    (problem,) = submission.check_file(checked, f"results/{CHIP}.csv", submission.own_names())[1]
    assert problem.column == "note"
