"""What rows say together: repetitions, comparisons, and files that are not as they should be."""

import math
import os

import pandas as pd
import pytest

from bench.records import layout, tables
from bench.records.columns import COLUMNS
from tests.records import examples
from tests.records.examples import BASE, rate


@pytest.fixture
def write(tmp_path):
    return lambda *rows, machine="a": examples.write(tmp_path / "results", rows, machine)


def summary(*paths):
    said = []
    rows = tables.read_rows(paths, said.append)
    return tables.add_peak_fraction(tables.summarize(rows), rows), said


def test_one_row_keeps_its_own_interval(write):
    (row,) = summary(write({}))[0].to_dict("records")
    assert (row["value"], row["low"], row["high"], row["per"], row["rows"]) == (100, 99, 101, "images/s", 1)
    assert tables.name_line(row) == "resnet50, training, float32, batch 16, 224 px"


def test_repetitions_give_the_median_and_what_covers_all_of_them(write):
    (row,) = summary(write(rate(100), rate(90), rate(110)))[0].to_dict("records")
    assert (row["value"], row["rows"]) == (100, 3)
    assert (row["low"], row["high"], row["spread"]) == pytest.approx((90, 110, 110 / 90))
    assert tables.interval(row) == "90 to 110, 3 processes"


def test_the_share_of_the_bandwidth_is_of_the_machines_own_best(write):
    moved = {"workload": "bandwidth", "model": "copy", "phase": "", "unit": "GB/s", "tflops": "", "batch_size": ""}
    decode = {"workload": "llm", "model": "llama", "phase": "decode", "unit": "tokens/s", "bandwidth": "30"}
    rows = [rate(40) | moved, rate(60) | moved | {"model": "add"}, rate(90) | moved | {"device": "cuda"}]
    path = write(
        *rows, rate(10) | decode, rate(10) | decode | {"source": "https://x"}, rate(1) | decode | {"bandwidth": ""}
    )
    lines = summary(path)[0]
    found = lines[lines["workload"] == "llm"][["published", "of_bandwidth"]].to_numpy().tolist()
    assert found[0] == [True, pytest.approx(math.nan, nan_ok=True)]
    (own,) = summary(write(*rows, rate(10) | decode, machine="b"))[0].query("workload == 'llm'").to_dict("records")
    assert own["of_bandwidth"] == 0.5
    assert tables.CELLS["of bandwidth"](own) == "50 %"
    assert tables.CELLS["GB/s"](own) == "30"


def test_repetitions_are_not_merged_across_methods(write):
    (row,) = summary(write(rate(50) | {"method_version": "1"}, rate(100) | {"method_version": "2"}))[0].to_dict(
        "records"
    )
    assert (row["value"], row["rows"], row["method_version"]) == (100, 1, "2")


def test_a_rate_without_a_number_has_no_interval(write):
    (row,) = summary(write({"throughput": "nan", "step_seconds_median": "0.5"}))[0].to_dict("records")
    assert tables.describe_rate(row) == "0.5 s per step"
    assert tables.interval(row) == ""


def test_statistics_that_were_flags_in_older_rows_are_dropped(write):
    found, _ = summary(write({"flags": "few_windows contended ci_not_met"}))
    assert found["flags"].tolist() == ["contended"]


def test_rows_of_an_older_version_are_not_mixed_in(write):
    (row,) = summary(write(rate(50) | {"framework_version": "2.14"}, rate(100), rate(102)))[0].to_dict("records")
    assert (row["value"], row["rows"], row["framework_version"]) == (101, 2, "2.15")


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


def test_a_blank_setup_is_the_usual_one(write):
    found, _ = summary(write(rate(10), rate(10) | {"power_source": "ac", "low_power_mode": "0"}))
    assert (found["setup"].tolist(), found["rows"].tolist()) == ([""], [2])


def test_an_interrupted_run_counts_where_there_is_no_other(write):
    stopped = rate(60) | {"status": "interrupted", "commit": "later"}
    found, _ = summary(write(rate(100), stopped, stopped | {"model": "vgg16"}))
    lines = {row["model"]: (row["value"], tables.list_flags(row)) for row in found.to_dict("records")}
    assert lines == {"resnet50": (100, ""), "vgg16": (60, "interrupted")}


def test_a_short_look_of_a_search_counts_where_there_is_nothing_better(write):
    look, keeps = {"search": "x"}, {"allocator": "MALLOC_TRIM_THRESHOLD_=1"}
    (row,) = summary(write(rate(90) | look | {"search_step": "0"}, rate(80) | look))[0].to_dict("records")
    assert (row["value"], row["rows"]) == (90, 1)
    lines = summary(write(rate(70) | look | keeps))[0]
    assert lines["value"].tolist() == [90, 70]


def test_no_doubt_of_a_repetition_is_lost(write):
    flags = ("throttled contended", "", "contended drift", "")
    (row,) = summary(write(*(rate(100 + i) | {"flags": each} for i, each in enumerate(flags))))[0].to_dict("records")
    assert tables.list_flags(row) == "throttled contended drift"


def test_published_figures_are_never_taken_together(write):
    found, _ = summary(write(rate(826) | {"source": "https://x"}, rate(1218) | {"source": "https://x"}))
    assert found["value"].tolist() == [826, 1218]


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
    assert [key[1:] for key, of_peak in fractions.items() if of_peak == 1] == [
        ("matmul-peak", "float32"),
        ("matmul-peak", "bfloat16"),
    ]
    assert math.isnan(fractions["a", "matmul-best", "float32"])  # published
    assert math.isnan(fractions["b", "resnet50", "float32"])  # no peak


def test_an_operators_interval_is_in_tflops(write):
    row = rate(1000, width=0.1) | {"workload": "matmul", "model": "matmul", "tflops": "2"}
    (row,) = summary(write(row))[0].to_dict("records")
    assert (row["value"], row["low"], row["high"], row["per"]) == (2, pytest.approx(1.8), pytest.approx(2.2), "TFLOP/s")


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
    (line,) = (
        tables.summarize(tables.read_rows([write({})]))
        .assign(of_peak=math.nan, of_bandwidth=math.nan, **row)
        .to_dict("records")
    )
    cells = {"machine": lambda row: row["machine"]} | tables.CELLS
    page = layout.markdown(cells, [line])
    assert not set("<>[]`") & set(page)
    assert "&#60;script&#62;" in page


def test_a_loss_that_is_no_number_and_a_stuck_meter_are_unknown(write):
    still = {"loss_mean": "nan", "accuracy": "0", "power_watts": "0", "joules_per_item": "0", "peak_memory_bytes": "0"}
    found, said = summary(write(still))
    (row,) = found.to_dict("records")
    assert (said, row["value"], row["accuracy"]) == ([], 100, 0)
    assert all(math.isnan(row[column]) for column in still if column != "accuracy")


def test_every_row_names_its_file(write, tmp_path):
    short = tmp_path / "short.csv"
    short.write_text(",".join(BASE) + "\n" + ",".join(BASE.values()) + "\n")
    rows = tables.read_rows([write({}, {}), short, write({}, machine="b")])
    assert sorted(rows["file"]) == ["a.csv", "a.csv", "b.csv", "short.csv"]
    assert rows.loc[rows["machine"] == "b", "file"].tolist() == ["b.csv"]


def test_a_table_to_paste(write, monkeypatch, tmp_path, capsys):
    write({}, {"throughput": "", "throughput_low": "", "throughput_high": "", "status": "failed"})
    monkeypatch.setenv("MACHINE", "a")
    assert tables.main() == 0
    out = capsys.readouterr().out
    assert (
        "| resnet50, training, float32, batch 16, 224 px | torch 2.15 | cpu | 100 images/s | 99 to 101 | 2.4 |" in out
    )
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert tables.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert "  interval: 99 to 101; " in "\n".join(lines)
    monkeypatch.setenv("MACHINE", "nobody")
    assert tables.main() == 1
    assert "nobody.csv does not exist" in capsys.readouterr().err


def test_own_lines_and_each_machines_first_are_kept():
    frame = pd.DataFrame({"machine": list("aaabc"), "published": [False] * 4 + [True], "value": range(5)})
    kept = [tables.limit_rows(frame, limit)["value"].tolist() for limit in (1, 3, 5)]
    assert kept == [[0], [0, 1, 3], [0, 1, 2, 3, 4]]


def test_figures_have_four_digits_and_no_exponent_where_they_are_large():
    assert [tables.figure(value) for value in (0.5214, 1695.96, 20153.2, 1e-05)] == ["0.5214", "1696", "20150", "1e-05"]


def test_unknown_figures_are_blank_and_no_cell_breaks_the_table():
    assert tables.figure(None) == tables.figure(math.nan) == tables.figure("") == ""
    cells = {"<a": lambda row: row[0], "b": lambda row: row[1]}
    assert layout.markdown(cells, [["x|y", ""]]) == "| &#60;a |\n| --- |\n| x&#124;y |"
    assert pd.isna(tables.summarize(tables.read_rows([]))["rows"].max())
