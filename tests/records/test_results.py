"""Rows are never lost, mixed or overwritten."""

import errno
import subprocess
import sys
from unittest.mock import Mock

import pytest

from bench.records import results
from bench.records.columns import COLUMNS
from bench.records.results import ResultsError

OLD = ["schema", "machine", "run_id", "note"]
ROW = {"schema": 2, "machine": "m"}


def test_a_row_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "m.csv"
    assert results.read(path) == []
    results.append(path, ROW | {"throughput": 12.3456789, "parameters": 25557032, "note": "two\nlines, 1"})
    results.append(path, ROW | {"throughput": None})
    first, second = results.read(path)
    assert (first["throughput"], first["parameters"], first["note"]) == ("12.3457", "25557032", "two lines, 1")
    assert (second["throughput"], second["flags"]) == ("", "")


def test_a_file_with_fewer_columns_gains_the_new_ones(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text(",".join(OLD) + '\n2,m,x,"a, b"\n')
    results.append(path, ROW | {"run_id": "y", "throughput": 2.5})
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)
    found = [(row["run_id"], row["note"], row["throughput"]) for row in results.read(path)]
    assert found == [("x", "a, b", ""), ("y", "", "2.5")]


@pytest.mark.parametrize(
    "text",
    [
        ",".join(OLD) + "\n2,m,x,y\n2,m,x,y,z\n",
        "device,fps\nm1,3\n",
        ",".join(OLD) + "\n2,m,x,y",  # the last line is incomplete
        ",".join(OLD) + "\n1,m,x,y\n",  # another schema
    ],
)
def test_a_file_that_must_not_be_written_to_is_left_as_it_is(tmp_path, text):
    path = tmp_path / "m.csv"
    path.write_text(text)
    for use in (results.read, lambda path: results.append(path, ROW)):
        with pytest.raises(ResultsError):
            use(path)
        assert path.read_text() == text


APPEND = """
import sys
from pathlib import Path
from bench.records import results
for i in range(20):
    row = {"schema": 2, "machine": "m", "run_id": sys.argv[2], "items": i, "note": "x" * 200}
    results.append(Path(sys.argv[1]), row)
"""


def test_parallel_processes_lose_and_mix_no_rows(tmp_path):
    path = tmp_path / "m.csv"
    writers = [subprocess.Popen([sys.executable, "-c", APPEND, str(path), str(n)]) for n in range(3)]
    assert [writer.wait() for writer in writers] == [0] * 3
    rows = results.read(path)
    assert len(rows) == len({(row["run_id"], row["items"]) for row in rows}) == 60
    assert all(row["note"] == "x" * 200 for row in rows)


@pytest.mark.parametrize("lock", [".csv.lock", "m.csv.lock"])
def test_a_lock_that_cannot_be_taken_is_named_before_anything_is_measured(tmp_path, lock):
    (tmp_path / lock).mkdir()  # root may open any file
    with pytest.raises(ResultsError, match=rf"/{lock} cannot"):
        results.check_writable(tmp_path, ["m"])


def test_another_user_can_take_a_lock(tmp_path):
    results.append(tmp_path / "m.csv", ROW)
    assert (tmp_path / "m.csv.lock").stat().st_mode & 0o777 == 0o666


def test_an_impossible_place_is_refused_at_once_and_a_full_disk_leaves_whole_rows(tmp_path, monkeypatch):
    path = tmp_path / "m.csv"
    results.append(path, ROW)
    results.check_writable(tmp_path, ["m", "n"])
    assert list(tmp_path.glob("*.csv")) == [path]
    with pytest.raises(ResultsError):
        results.check_writable(path, [])
    before = path.read_text()
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(results.os, "fsync", full)
    with pytest.raises(ResultsError, match="No space left on device"):
        results.append(path, ROW)
    assert path.read_text() == before
