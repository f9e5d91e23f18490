"""Rows are never lost, mixed or overwritten."""

import errno
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest

from bench.records import results, tables
from bench.records.results import ResultsError
from bench.timing import METHOD_VERSION

OLD = ["schema", "machine", "run_id", "process", "timestamp", "status", "throughput", "note"]
ROW = {"schema": 2, "machine": "m", "process": 1, "timestamp": "2026-11-20T11:34:42+00:00", "status": "failed"}
LINE = f"2,m,x,1,{ROW['timestamp']},failed,9,y\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.csv"


def read(path, warn=pytest.fail):
    return tables.load([path], warn).to_dict("records")


def test_a_row_comes_back_as_it_was_written(path):
    assert read(path) == []
    results.append(path, ROW | {"throughput": 12.3456789, "parameters": 25557032, "note": 'a "quote", 1'})
    results.append(path, ROW | {"throughput": None, "loss_mean": math.nan})
    first, second = read(path)
    assert (first["throughput"], first["parameters"], first["note"]) == (12.3457, 25557032, 'a "quote", 1')
    assert math.isnan(second["throughput"])


@pytest.mark.parametrize("header", [*["device,fps", "schema,machine,machine", "schema,machine,sead"], "{" * 5000])
def test_a_foreign_file_is_left_as_it_is(path, header):
    said = []
    path.write_text(f"{header}\nm1,3\n")
    assert read(path, said.append) == []
    with pytest.raises(ResultsError) as error:
        results.append(path, ROW)
    assert path.read_text() == f"{header}\nm1,3\n"
    for line in (*said, str(error.value)):
        assert len(line.replace(str(path), "")) < 250
        assert line.count(str(path)) == 1


# What a spreadsheet or an editor makes of a file of two rows: (what is done to its text, number of rows, line told)
SAVED = {
    "nothing": (lambda text: "", 0, None),
    "a byte order mark": (lambda text: "\ufeff" + text, 2, None),
    "semicolons": (lambda text: "sep=;\n" + text.replace(",", ";"), 2, None),
    "blank lines": (lambda text: text.replace("\n", "\n\n,,,,,\n"), 2, None),
    "other line ends": (lambda text: text.replace("\n", "\r\n"), 2, None),
    "a newer header": (lambda text: text + "seed," + text.replace("\n2,", "\n3,2,"), 4, None),
    "no last line end": (lambda text: text[:-1], 2, None),
    "half a line": (lambda text: text[:-9], 1, 3),
    "a cell too many": (lambda text: text[:-1] + ",\n", 1, 3),
    "a lone quote": (lambda text: text.replace(",y", ',"y', 1), 1, 2),
    "bytes of Windows": (lambda text: text.replace("y\n", "\udcb5\n", 1), 1, 2),
}


@pytest.mark.parametrize(("change", "count", "told"), SAVED.values(), ids=SAVED)
def test_a_file_is_written_anew_with_todays_header_unless_lines_would_be_lost(tmp_path, path, change, count, told):
    said = []
    path.write_bytes(change(",".join(OLD) + "\n" + LINE * 2).encode(errors="surrogateescape"))
    before = path.read_bytes()
    assert len(read(path, said.append)) == count
    assert [int(re.search(r" line (\d+) has ", line)[1]) for line in said] == [told] * bool(told)
    if told:
        with pytest.raises(ResultsError, match=f" line {told} "):
            results.append(path)
        assert path.read_bytes() == before
    else:
        results.append(path, ROW | {"run_id": "new"})
        assert [row["run_id"] for row in read(path)] == ["x"] * count + ["new"]
        assert path.read_text().startswith(results.HEADER)


@pytest.mark.parametrize("cell", ["1.234,5", "95.88 \u00b1 0.63", "nan", "inf", "-5", "16.29 images/s"])
def test_a_line_with_a_number_or_a_schema_that_does_not_fit_is_left_out(path, cell):
    said = []
    path.write_text(";".join(OLD) + "\n" + LINE.replace(",", ";") * 3)
    path.write_text(path.read_text().replace(";9;", f";{cell};", 1) + LINE.replace(",", ";").replace("2", "1", 1))
    assert [row["is_whole"] for row in read(path, said.append)] == [False, False]  # of the same run
    assert len(said) == 1
    assert "2 of 4 rows" in said[0]
    assert f" line 2 has throughput {cell!r} " in said[0]


def test_a_line_that_was_cut_stays_and_harms_no_other_one(path):
    results.append(path, ROW)
    path.write_text(path.read_text() + LINE[:-1])
    before = path.read_text()
    results.append(path, ROW, ROW)
    assert path.read_text().startswith(f"{before}\n")
    said = []
    assert len(read(path, said.append)) == 3
    assert len(said) == 1


def test_a_link_stays_one_and_a_folder_is_refused(tmp_path, path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "all.csv").write_text(",".join(OLD) + "\n")  # it is written anew
    path.symlink_to("shared/all.csv")
    results.append(path, ROW)
    assert path.is_symlink()
    assert len(read(tmp_path / "shared" / "all.csv")) == 1
    (tmp_path / "n.csv").mkdir()
    said = []
    assert read(tmp_path / "n.csv", said.append) == []
    assert len(said) == 1
    with pytest.raises(ResultsError, match=r"/n\.csv"):
        results.append(tmp_path / "n.csv")


APPEND = f"""
import sys
from pathlib import Path
from bench.records import results
for i in range(20):
    row = {ROW} | {{"run_id": sys.argv[2], "items": i + 1, "note": "x" * 200}}
    results.append(Path(sys.argv[1]), row)
"""


def test_parallel_processes_lose_no_rows(path):
    writers = [subprocess.Popen([sys.executable, "-c", APPEND, str(path), str(n)]) for n in range(3)]
    assert [writer.wait() for writer in writers] == [0] * 3
    rows = read(path)
    assert len(rows) == len({(row["run_id"], row["items"]) for row in rows}) == 60
    assert all(row["note"] == "x" * 200 for row in rows)
    assert Path(f"{path}.lock").stat().st_mode & 0o777 == 0o666  # another user can take it


def test_a_full_disk_leaves_whole_rows(tmp_path, path, monkeypatch):
    results.append(path, ROW)
    results.append(tmp_path / "n.csv")
    assert list(tmp_path.glob("*.csv")) == [path]
    before = path.read_text()
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(results.os, "fsync", full)
    with pytest.raises(ResultsError, match="No space left on device"):
        results.append(path, ROW)
    assert path.read_text() == before


def test_a_replaced_file_keeps_its_mode_and_owner(path):
    results.append(path, ROW)
    path.chmod(0o664)
    os.chown(path, *((1, 2) if os.getuid() == 0 else (-1, -1)))
    old = path.stat()
    results.append(path, ROW)
    assert path.stat()[:1] + path.stat()[4:6] == old[:1] + old[4:6]  # mode, owner, group


def test_without_flock_a_row_is_stored_unless_a_lock_was_copied(path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOSYS, "no flock")))
    monkeypatch.setattr(results, "LOCK_SECONDS", 0.1)
    results.append(path, ROW)
    Path(f"{path}.lock").touch()
    with pytest.raises(ResultsError, match=r" m\.csv\.lock "):
        results.append(path, ROW)
    assert len(read(path)) == 1


def test_the_recipe_of_the_page_of_columns_runs_and_the_citation_is_of_this_version():
    found = {}
    exec(Path("docs/columns.md").read_text().partition("\n\n    ")[2].replace("\n    ", "\n"), found)  # the recipe
    assert found["rates"].max() > 0
    assert f'version: "{METHOD_VERSION}"' in Path("CITATION.cff").read_text()


def test_each_number_of_the_first_benchmarks_is_among_the_published_results():
    published = tables.load([results.PUBLISHED / "published.csv"], pytest.fail)
    seeds = pd.read_csv("tests/records/seeds.csv", dtype=str, keep_default_na=False)
    for seed in seeds.replace({"epoch": "5"}, "").to_dict("records"):  # the last epoch is the result
        same = ["device", "workload", "model", "phase", "batch_size", "epoch"]
        is_same = (published[same] == pd.Series(seed)[same]).all(axis=1)
        found = published.loc[is_same & published["device_name"].str.startswith(seed["device_name"])]
        times = [*found["step_seconds_median"], *found["seconds"], *1e6 / found["throughput"]]
        assert pytest.approx(float(seed["value"]), rel=1e-7) in times, seed
        assert seed["loss_mean"] in ("", f"{found['loss_mean'].iloc[0]:.4f}"), seed
        assert seed["training_accuracy"] in found["note"].iloc[0], seed
    page = Path("docs/published.md").read_text()
    assert all(f" {count} r" in page for count in (len(published), sum(published["status"] != "ok")))
