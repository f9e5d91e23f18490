"""The latest result of each machine, work and setup, and files that are not as they should be."""

import pytest

from bench.records import tables
from tests import rows
from tests.rows import rate


@pytest.fixture
def write(tmp_path):
    return lambda *changes, machine="a": rows.write(tmp_path / "results", changes, machine)


def summary(*paths):
    return tables.latest(tables.read_rows(paths, pytest.fail))


MATMUL = {"workload": "matmul", "model": "matmul", "tflops": "2"}
LATER = {"timestamp": "2030-01-01T00:00:00+00:00"}
CONTENDED = {"flags": "drift contended"} | LATER
THREE = {"processes": 3}


@pytest.mark.parametrize(
    ("rows", "cells"),
    [
        ([{}], {"value": 100, "low": 99, "high": 101, "per": "images/s", "processes": 1}),
        ([rate(90), rate(110) | {"processes": 3, "commit": "later"}], {"value": 110, "processes": 3}),
        ([rate(90), rate(110) | {"timestamp": "2025-11-20T11:34:42+00:00"}], {"value": 90}),
        ([rate(90), rate(110) | {"status": "interrupted"}], {"value": 90}),
        ([rate(90) | {"processes": 3}, rate(110) | {"processes": 2}], {"value": 90}),
        # A disturbed row counts only if there is no other one.
        ([rate(90), rate(10) | CONTENDED | {"commit": "later"}], {"value": 90}),
        ([rate(10) | CONTENDED, rate(90) | {"group": "x"}], {"value": 90}),
        # A row of a comparison does not push out one of its own, unless that is a quick check.
        ([rate(90) | THREE, rate(110) | THREE | {"group": "x"} | LATER], {"value": 90}),
        ([rate(90) | THREE, rate(110) | THREE | LATER | {"commit": "x-dirty"}], {"value": 90}),
        # Rows of one run are a result of as many processes.
        (
            [rate(90), *(rate(109 + i) | {"process": i, "run_id": "x"} for i in (0, 1, 2, 3) if i)],
            {"value": 111, "processes": 3},
        ),
        ([rate(90), rate(110) | {"group": "x"} | THREE], {"value": 110}),
        ([rate(1000, width=0.1) | MATMUL], {"value": 2, "low": 1.8, "high": 2.2, "per": "TFLOP/s"}),
        ([rate(10), rate(20) | {"power_source": "ac", "low_power_mode": "0"}], {"setup": "", "value": 20}),
    ],
)
def test_the_latest_row_of_the_same_work_counts(write, rows, cells):
    (row,) = summary(write(*rows)).to_dict("records")
    assert {name: row[name] for name in cells} == pytest.approx(cells)


def test_every_setup_is_a_line_that_says_so(write):
    base = rate(1000) | {"num_threads": "64"}
    found = summary(write(base, rate(50) | {"num_threads": "1", "power_limit_watts": "450"}))
    lines = [(row["value"], row["setup"]) for row in found.to_dict("records")]
    assert lines == [(1000, "64 threads"), (50, "power limit 450 W, 1 thread")]


def test_cards_of_one_name_name_their_power_limits(write):
    found = summary(*(write({"power_limit_watts": watts}, machine=watts) for watts in ("400", "600")))
    assert [words.partition(" W")[0] for words in found["setup"]] == ["power limit 400", "power limit 600"]


def test_published_figures_are_lines_of_their_own_next_to_own_ones(write):
    cited = {"source": "https://x"}
    found = summary(write(rate(5), rate(826) | cited, rate(1218) | cited | {"status": "cpu_time"}))
    assert found[["value", "published"]].to_numpy().tolist() == [[5, False], [826, True], [1218, True]]


def test_shares_are_of_own_results_over_own_peaks(write):
    cited = {"source": "https://x"}
    peak = {"workload": "matmul", "model": "matmul-peak", "phase": "", "tflops": "9.6"}
    moved = rate(60) | {"workload": "bandwidth", "model": "copy", "phase": "", "tflops": ""}
    decode = {"workload": "llm", "model": "llama", "phase": "decode", "tflops": "", "bandwidth": "30"}
    rows = [{}, peak, peak | {"tflops": "790"} | cited, moved, moved | rate(40) | CONTENDED, decode, decode | cited]
    found = summary(write(*rows), write({}, machine="b"))
    assert found["of_bandwidth"].dropna().tolist() == [0.5]
    assert found["of_peak"].dropna().tolist() == pytest.approx([0.25, 1])


def test_rows_of_sustained_runs_are_left_out(write):
    rows = tables.read_rows([write({})], pytest.fail)
    assert tables.latest(rows.assign(scope="sustained")).empty


def test_a_broken_file_is_named_in_one_line_and_the_others_are_read(write, tmp_path):
    broken, said = tmp_path / "broken.csv", []
    broken.write_text("a,b\n1,2\n")
    rows = tables.read_rows([write({}), broken, write({}, machine="b")], said.append)
    assert rows["machine"].tolist() == ["a", "b"]
    (line,) = said
    assert line.count("broken.csv") == 1
