"""What rows say together: repetitions, comparisons, and files that are not as they should be."""

import math
import os

import pandas as pd
import pytest

from bench.records import layout, tables
from bench.records.columns import COLUMNS, format_number
from tests.records import examples
from tests.records.examples import BASE, rate


@pytest.fixture
def write(tmp_path):
    return lambda *rows, machine="a": examples.write(tmp_path / "results", rows, machine)


def summary(*paths):
    said = []
    rows = tables.read_rows(paths, said.append)
    return tables.add_peak_fraction(tables.summarize(rows), rows), said


LOOK, KEEPS = {"search": "x"}, {"allocator": "MALLOC_TRIM_THRESHOLD_=1"}
MATMUL = {"workload": "matmul", "model": "matmul", "tflops": "2"}


@pytest.mark.parametrize(
    ("rows", "cells"),
    [
        ([{}], {"value": 100, "low": 99, "high": 101, "per": "images/s", "rows": 1}),
        ([rate(100), rate(90), rate(110)], {"value": 100, "rows": 3, "low": 89.1, "high": 111.1, "spread": 110 / 90}),
        ([rate(50) | {"method_version": "1"}, rate(100) | {"method_version": "2"}], {"value": 100, "rows": 1}),
        ([rate(50) | {"framework_version": "2.14"}, rate(100), rate(102)], {"value": 101, "rows": 2}),
        ([rate(1000, width=0.1) | MATMUL], {"value": 2, "low": 1.8, "high": 2.2, "per": "TFLOP/s"}),
        ([rate(10), rate(10) | {"power_source": "ac", "low_power_mode": "0"}], {"setup": "", "rows": 2}),
        # A short trial of a search counts if there is nothing better.
        ([rate(90) | LOOK | {"search_step": "0"}, rate(80) | LOOK], {"value": 90, "rows": 1}),
    ],
)
def test_rows_of_the_same_work_are_one_line(write, rows, cells):
    (row,) = summary(write(*rows))[0].to_dict("records")
    assert {name: row[name] for name in cells} == pytest.approx(cells)


def test_the_share_of_the_bandwidth_is_of_the_machines_own_best(write):
    moved = {"workload": "bandwidth", "model": "copy", "phase": "", "unit": "GB/s", "tflops": "", "batch_size": ""}
    decode = {"workload": "llm", "model": "llama", "phase": "decode", "unit": "tokens/s", "bandwidth": "30"}
    rows = [rate(40) | moved, rate(60) | moved | {"model": "add"}, rate(90) | moved | {"device": "cuda"}]
    lines = summary(write(*rows, rate(10) | decode | {"source": "https://x"}, rate(10) | decode))[0]
    published, own = lines[lines["workload"] == "llm"].sort_values("published", ascending=False).to_dict("records")
    assert math.isnan(published["of_bandwidth"])
    assert own["of_bandwidth"] == 0.5
    assert tables.CELLS["of bandwidth"](own) == "50 %"
    assert tables.CELLS["GB/s"](own) == "30"
    unknown = summary(write(*rows, rate(1) | decode | {"bandwidth": ""}, machine="b"))[0].query("workload == 'llm'")
    assert unknown["of_bandwidth"].isna().all()


def test_a_rate_without_a_number_has_no_interval(write):
    (row,) = summary(write({"throughput": "nan", "step_seconds_median": "0.5"}))[0].to_dict("records")
    assert tables.describe_rate(row) == "0.5 s per step"
    assert tables.interval(row) == ""


def test_statistics_that_were_flags_in_older_rows_are_dropped(write):
    found, _ = summary(write({"flags": "few_windows contended ci_not_met"}))
    assert found["flags"].tolist() == ["contended"]


def test_the_latest_row_counts_whatever_file_it_is_in(write, tmp_path):
    old, new = {"timestamp": "2025-01-01", "commit": "old"}, {"timestamp": "2026-01-01", "commit": "new"}
    paths = [write(rate(200) | new), tmp_path / "results" / "z.csv"]
    write(rate(100) | old, machine="z")
    paths[1].write_text(paths[1].read_text().replace(",z,", ",a,"))
    assert summary(*paths)[0]["value"].tolist() == [200]
    merged = write(rate(300) | new, rate(100) | old, machine="merged")
    assert summary(merged)[0]["value"].tolist() == [300]


def test_a_copy_of_a_file_counts_once(write, tmp_path):
    path = write(rate(100) | {"run_id": "x"}, rate(110) | {"run_id": "y"})
    copy = tmp_path / "results" / "a (1).csv"
    copy.write_bytes(path.read_bytes())
    assert summary(path, copy)[0]["rows"].tolist() == [2]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"num_threads": "1"}, "1 thread"),
        ({"power_source": "battery"}, "on battery, 64 threads"),
        ({"low_power_mode": "1"}, "in low-power mode, 64 threads"),
        ({"allocator": "MALLOC_TRIM_THRESHOLD_=1"}, "MALLOC_TRIM_THRESHOLD_=1, 64 threads"),
    ],
)
def test_every_setup_is_a_line_that_says_so(write, other, said):
    base = rate(1000) | {"num_threads": "64"}
    found, _ = summary(write(base, base | rate(50) | other))
    lines = [(row["value"], row["rows"], row["setup"]) for row in found.to_dict("records")]
    assert lines == [(1000, 1, "64 threads"), (50, 1, said)]
    assert tables.name_line(found.iloc[1]).endswith(f"224 px, {said}")


def test_an_interrupted_run_counts_where_there_is_no_other(write):
    stopped = rate(60) | {"status": "interrupted", "commit": "later"}
    found, _ = summary(write(rate(100), stopped, stopped | {"model": "vgg16"}))
    lines = {row["model"]: (row["value"], tables.list_flags(row)) for row in found.to_dict("records")}
    assert lines == {"resnet50": (100, ""), "vgg16": (60, "interrupted")}


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        ([rate(826) | {"source": "https://x"}, rate(1218) | {"source": "https://x"}], [826, 1218]),
        # A short trial of a search counts for another setup.
        ([rate(90) | LOOK | {"search_step": "0"}, rate(80) | LOOK, rate(70) | LOOK | KEEPS], [90, 70]),
    ],
)
def test_published_figures_and_other_setups_are_lines_of_their_own(write, rows, values):
    assert summary(write(*rows))[0]["value"].tolist() == values


def test_no_doubt_of_a_repetition_is_lost(write):
    flags = ("throttled contended", "", "contended drift", "")
    (row,) = summary(write(*(rate(100 + i) | {"flags": each} for i, each in enumerate(flags))))[0].to_dict("records")
    assert tables.list_flags(row) == "throttled contended drift"


def test_other_settings_and_machines_are_other_lines(write):
    paths = write({}, {"batch_size": "32"}, {"precision": "tf32"}, {"status": "work_skipped"}), write({}, machine="b")
    found, _ = summary(*paths)
    assert len(found) == 4
    assert sorted(found["machine"]) == ["a", "a", "a", "b"]


def test_the_fraction_of_a_peak_is_that_of_the_same_machine_and_precision(write):
    peak = {"workload": "matmul", "model": "matmul-peak", "phase": "", "tflops": "9.6"}
    sixteen = peak | {"precision": "bfloat16", "tflops": "24"}
    theirs = peak | {"model": "matmul-best", "tflops": "790", "source": "https://x"}
    found, _ = summary(write({}, peak, sixteen, {"precision": "mixed_bfloat16"}, theirs), write({}, machine="b"))
    fractions = found.set_index(["machine", "model", "precision"])["of_peak"].to_dict()
    assert fractions.pop(("a", "resnet50", "float32")) == 0.25
    assert fractions.pop(("a", "resnet50", "mixed_bfloat16")) == pytest.approx(0.1)
    peaks = [key[1:] for key, of_peak in fractions.items() if of_peak == 1]
    assert peaks == [("matmul-peak", "float32"), ("matmul-peak", "bfloat16")]
    assert math.isnan(fractions["a", "matmul-best", "float32"])  # published
    assert math.isnan(fractions["b", "resnet50", "float32"])  # no peak


def with_cell(cell, name="throughput"):
    row = [cell if column == name else BASE.get(column, "") for column in COLUMNS]
    return f"{HEADER}\n{','.join(row)}\n"


HEADER = ",".join(COLUMNS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,2\n", "foreign"),
        ("", "no rows"),
        (f"{HEADER}\n1,2\n", "its line 2 (it has 2 cells, the header"),
        (with_cell("fast"), "its throughput is not a number"),
        (with_cell("1e308"), "its throughput is larger than 1e+18"),
        (with_cell("1e-320"), "its throughput is smaller than 1e-18"),
        (with_cell("102", "throughput_low"), "its throughput_low is above its throughput_high"),
        (with_cell("99", "schema"), "newer version (schema 99)"),
        *((with_cell(cell), "its throughput is not always above 0 and finite") for cell in ("0", "-5", "inf")),
    ],
)
def test_a_broken_file_is_named_in_one_line_and_the_others_are_read(write, tmp_path, text, why):
    broken, said = tmp_path / "broken.csv", []
    broken.write_text(text)
    rows = tables.read_rows([write({}), broken, write({}, machine="b")], said.append)
    assert rows[["machine", "file"]].to_numpy().tolist() == [["a", "a.csv"], ["b", "b.csv"]]
    (line,) = said
    assert "broken.csv" in line
    assert why in line
    assert "\n" not in line


def test_what_is_not_a_regular_file_is_left_out(tmp_path):
    said = []
    os.mkfifo(tmp_path / "pipe.csv")
    assert tables.read_rows([tmp_path / "pipe.csv"], said.append).empty
    assert [line.split(" ")[0] for line in said] == [f"{tmp_path}/pipe.csv"]


def test_no_cell_is_more_than_its_text(write):
    row = {"machine": "<script>", "model": "![x](http://y)", "framework_version": "`#` & [a](b)"}
    lines = tables.summarize(tables.read_rows([write({})])).assign(of_peak=math.nan, of_bandwidth=math.nan, **row)
    page = layout.markdown({"machine": lambda row: row["machine"]} | tables.CELLS, lines.to_dict("records"))
    assert not set("<>[]`") & set(page)
    assert "&#60;script&#62;" in page


def test_a_loss_that_is_no_number_and_a_stuck_meter_are_unknown(write):
    still = {"loss_mean": "nan", "accuracy": "0", "power_watts": "0", "joules_per_item": "0", "peak_memory_bytes": "0"}
    found, said = summary(write(still))
    (row,) = found.to_dict("records")
    assert (said, row["value"], row["accuracy"]) == ([], 100, 0)
    assert all(math.isnan(row[column]) for column in still if column != "accuracy")


def test_a_table_to_paste(write, monkeypatch, tmp_path, capsys):
    failed = {"throughput": "", "throughput_low": "", "throughput_high": "", "status": "failed"}
    write(rate(100), rate(90), rate(110), failed)
    monkeypatch.setenv("MACHINE", "a")
    assert tables.main() == 0
    out = capsys.readouterr().out
    work = "resnet50, training, float32, batch 16, 224 px"
    assert f"{work} | torch 2.15 | cpu | 100 images/s | 89.1 to 111.1, 3 processes | 2.4 |" in out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert tables.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert "  interval: 89.1 to 111.1, 3 processes; " in "\n".join(lines)
    monkeypatch.setenv("MACHINE", "nobody")
    assert tables.main() == 1
    assert "nobody.csv does not exist" in capsys.readouterr().err


def test_own_lines_and_each_machines_first_are_kept():
    frame = pd.DataFrame({"machine": list("aaabc"), "published": [False] * 4 + [True], "value": range(5)})
    kept = [tables.limit_rows(frame, limit)["value"].tolist() for limit in (1, 3, 5)]
    assert kept == [[0], [0, 1, 3], [0, 1, 2, 3, 4]]


def test_figures_have_four_digits_and_unknown_ones_are_blank():
    shown = [format_number(value) for value in (0.5214, 1695.96, 20153.2, 1e-05)]
    assert shown == ["0.5214", "1696", "20150", "1e-05"]
    assert format_number(None) == format_number(math.nan) == format_number("") == ""
    assert pd.isna(tables.summarize(tables.read_rows([]))["rows"].max())
    cells = {"<a": lambda row: row[0], "b": lambda row: row[1]}
    assert layout.markdown(cells, [["x|y", ""]]) == "| &#60;a |\n| --- |\n| x&#124;y |"
