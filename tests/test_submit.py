"""Added rows pass; a wrong cell or an edited row is refused in one line, at the right place."""

import subprocess

import pytest

import submit_results
from bench.records import results
from bench.settings import SettingError
from tests.rows import COPY, FAILED, MATMUL, ROW, load

CHIP = ROW["machine"]
RTX_4090, RTX_9090 = (MATMUL | {"device": "cuda", "device_name": f"NVIDIA GeForce RTX {n}"} for n in (4090, 9090))
BOOSTED, FAST = ({"tflops": rate} for rate in (120, 11_920))  # 82.6 are rated


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        *(({}, []), (FAILED, []), (RTX_4090 | BOOSTED, []), (RTX_9090 | FAST, []), (RTX_4090 | FAST, ["tflops"])),
        (RTX_4090 | COPY | {"throughput": 6250}, ["tflops"]),
        (RTX_9090 | COPY | {"throughput": 6250, "rated_bandwidth": 1000}, []),
    ],
)
def test_a_rate_far_above_that_of_the_chip_is_refused(cells, named):
    faults = submit_results.find_faults(load([ROW | {"process": 1} | cells]), CHIP)
    assert [fault.split()[0] for fault, wrong in faults.items() if wrong.any()] == named


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one machine's file on main, checked out on the branch of a pull request."""

    def run(*command):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.check_output(["git", "-C", tmp_path, *identity, *command], text=True).strip()

    monkeypatch.setattr(submit_results, "ROOT", tmp_path)
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
    text = results.HEADER + results.to_text(same | change for change in changes)
    (repository.folder / f"{machine}.csv").write_text(text)


@pytest.fixture
def check(capsys):
    """A function that runs a command; returns its exit status, what it prints and the problems."""

    def call(*command, **environ):
        status = submit_results.main(*command, environ=environ)
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return call


def test_added_rows_pass_committed_or_not(repository, check):
    write(repository, {}, {"seed": 1}, {"seed": 2})
    (repository.folder / "published.csv").touch()
    assert check() == (0, f"checked: results/{CHIP}.csv\n", [])
    repository("add", "."), repository("commit", "-q", "-m", "3")
    # That commit differs from main in results/ only, so rows measured with it are accepted as well.
    write(repository, {}, {"seed": 1}, {"seed": 2}, {"commit": repository("rev-parse", "HEAD")})
    assert check(BASE="main") == (0, f"checked: results/{CHIP}.csv\n", [])


def change_program(repository):
    (repository.folder.parent / "program.py").write_text("2")
    repository("commit", "-q", "-a", "-m", "faster")
    write(repository, {}, {"commit": repository("rev-parse", "HEAD")})


CHANGES = {
    "an edited row": (lambda r: write(r, {"seed": 3}), f"{CHIP}.csv: "),
    "a removed file": (lambda r: (r.folder / f"{CHIP}.csv").unlink(), f"{CHIP}.csv: "),
    "a wrong cell": (lambda r: write(r, {}, {"source": "x"}), "row 2: source "),
    "another machine": (lambda r: write(r, {}, {"machine": "another"}), "row 2: machine "),
    "another chip": (lambda r: write(r, {}, {"seed": 1}, {"cpu_name": "Example B"}), "row 3: device_name "),
    "a cell that no row can have": (lambda r: write(r, {}, {"tflops": "x"}), "line 3 has tflops"),
    "changed programs": (change_program, "row 2: commit "),
}


@pytest.mark.parametrize(("change", "where"), CHANGES.values(), ids=CHANGES)
def test_changes_that_are_not_added_rows_are_refused_in_one_line(repository, check, change, where):
    change(repository)
    status, _, (line,) = check()
    assert (status, where in line) == (1, True)


def test_submit_prints_how_to_send_new_rows(repository, check):
    _, _, (line,) = check("submit")
    assert "no new rows" in line
    write(repository, {}, {"seed": 1})
    write(repository, {"source": "x"}, machine="another")
    status, out, _ = check("submit", MACHINE=CHIP)
    assert (status, f"git add results/{CHIP}.csv" in out, "disturbed" in out) == (0, True, False)
    write(repository, {}, {"seed": 1, "run_id": "x", "model": "vgg16", "flags": "contended"})
    assert "1 of 2 results are disturbed" in check("submit", MACHINE=CHIP)[1]
    with pytest.raises(SettingError, match="RESULTS_DIR='elsewhere'"):
        check("submit", RESULTS_DIR="elsewhere")
    status, out, (line,) = check("submit")
    assert (status, "git" in out, "results/another.csv, row 1" in line) == (1, False, True)
