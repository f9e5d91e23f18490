"""Rows are never lost, mixed or overwritten."""

import csv
import errno
import subprocess
import sys
import time
from os import write

import pytest

from bench.records import results
from bench.records.columns import COLUMNS
from bench.records.results import ResultsError

OLD = ["schema", "run_id", "status", "machine", "workload", "model", "throughput"]


def lines_of(path):
    return path.read_text().splitlines()


def test_a_row_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "m.csv"
    assert results.read(path) == []
    path.touch()
    assert results.read(path) == []
    results.append(path, {"run_id": "a", "throughput": 12.3456789, "parameters": 25557032, "note": "two\nlines, 1"})
    results.append(path, {"run_id": "b", "throughput": None})
    first, second = results.read(path)
    assert (first["throughput"], first["parameters"], first["note"]) == ("12.3457", "25557032", "two lines, 1")
    assert (second["run_id"], second["throughput"], second["flags"]) == ("b", "", "")
    assert len(lines_of(path)) == 3


@pytest.mark.parametrize("letter", ["\x1b", "\x9b", "\u202e", "\u200b", "\u2066", "\ufeff"])
def test_invisible_characters_are_dropped(tmp_path, letter):
    path = tmp_path / "m.csv"
    results.append(path, {"run_id": "a", "model": f"res{letter}net", "note": "\u0416"})
    assert letter not in path.read_text()
    path.write_text(path.read_text().replace("resnet", f"res{letter}net"))
    assert [(row["model"], row["note"]) for row in results.read(path)] == [("resnet", "\u0416")]


def test_a_key_that_is_not_a_column_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="speed"):
        results.append(tmp_path / "m.csv", {"speed": 1})


def test_an_older_header_gains_the_new_columns_last(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text(",".join(OLD) + '\n1,x,ok,mac,image,"a, b",7.5\n')
    results.prepare(path)
    assert next(csv.reader(lines_of(path))) == OLD
    results.append(path, {"run_id": "y", "note": "new"})
    header = next(csv.reader(lines_of(path)))
    assert header[: len(OLD)] == OLD
    assert set(header) == set(COLUMNS)
    old, new = results.read(path)
    assert (old["model"], old["throughput"], old["note"]) == ("a, b", "7.5", "")
    assert (new["run_id"], new["note"]) == ("y", "new")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(
            (",".join(OLD) + f"\n1,x,ok,mac,image,m,7.5\n{line}\n", "its line 3")
            for line in ("1,x,ok,mac,image,m", "1,x,ok,mac,image,m,7.5,8", '1,x,ok,mac,image,"m,7.5')
        ),
        ("device,fps\nm1,3\n", "foreign"),
        (",".join([*OLD, "joy"]) + "\n", "newer version (column joy)"),
        (",".join([*OLD, "note", "note"]) + "\n", "column note twice"),
        (",".join(OLD) + "\n1,x,ok,mac,im", "last line"),
        (",".join(OLD), "last line"),
        ("\n\n", "foreign"),
    ],
)
def test_a_file_that_must_not_be_written_to_is_left_as_it_is(tmp_path, text, said):
    path = tmp_path / "m.csv"
    path.write_text(text)
    prepare = [] if said == "its line 3" else [results.prepare]  # which reads only the header and the end
    for use in (*prepare, results.read, lambda path: results.append(path, {"run_id": "a"})):
        with pytest.raises(ResultsError) as error:
            use(path)
        assert said in str(error.value)
        assert str(path) in str(error.value)
        assert path.read_text() == text


def test_preparing_writes_nothing_and_names_what_cannot_be_written(tmp_path):
    results.prepare(tmp_path / "new" / "m.csv")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    (tmp_path / "m.csv.lock").mkdir()  # a lock that cannot be had
    for path in (tmp_path / "file" / "m.csv", tmp_path / "m.csv"):
        with pytest.raises(ResultsError, match="cannot be written to"):
            results.prepare(path)


def test_a_lock_that_stays_held_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "LOCK_SECONDS", 0.05)
    path = tmp_path / "m.csv"
    with results.FileLock(f"{path}.lock"), pytest.raises(ResultsError, match="end the program that holds it"):
        results.append(path, {"run_id": "a"})


def appending(path, name, rows):
    """A process that appends so many rows, each with its number and a long note."""
    program = (
        "import sys; from bench.records import results\n"
        "for i in range(int(sys.argv[3])):\n"
        "    results.append(sys.argv[1], {'run_id': sys.argv[2], 'items': i, 'note': 'x' * 200})\n"
    )
    return subprocess.Popen([sys.executable, "-c", program, str(path), name, str(rows)])


def test_parallel_processes_lose_and_mix_no_rows(tmp_path):
    path = tmp_path / "m.csv"
    writers = [appending(path, str(n), 200) for n in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    rows = results.read(path)
    assert len(rows) == 800
    assert len({(row["run_id"], row["items"]) for row in rows}) == 800
    assert all(row["note"] == "x" * 200 for row in rows)


def test_kill_at_any_moment_leaves_a_readable_file(tmp_path):
    path = tmp_path / "m.csv"
    for attempt in range(1, 6):
        writer = appending(path, str(attempt), 10**6)
        size = path.stat().st_size if path.exists() else 0
        while writer.poll() is None and (not path.exists() or path.stat().st_size <= size + 3000 * attempt):
            time.sleep(0.001)
        writer.kill()
        writer.wait()
        results.prepare(path)
        kept = [int(row["items"]) for row in results.read(path) if row["run_id"] == str(attempt)]
        assert kept == list(range(len(kept)))
        assert kept


def full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("some", [full, lambda file, data: write(file, data[:10])])
def test_a_full_disk_is_named(tmp_path, monkeypatch, some):
    path = tmp_path / "m.csv"
    results.append(path, {"run_id": "a"})
    before = path.read_text()
    monkeypatch.setattr(results.os, "write", some)
    with pytest.raises(ResultsError, match="No space left on device"):
        results.append(path, {"run_id": "b"})
    assert path.read_text() == before


def test_a_migration_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "m.csv"
    path.write_text(",".join(OLD) + "\n1,x,ok,mac,image,m,7.5\n")
    monkeypatch.setattr(results.os, "replace", full)
    with pytest.raises(ResultsError, match="No space left on device"):
        results.append(path, {"run_id": "y"})
    assert [each.name for each in tmp_path.iterdir() if each.suffix != ".lock"] == ["m.csv"]
