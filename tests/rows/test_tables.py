"""What rows say together: repetitions, comparisons, and files that are not as they should be."""

import math

import pandas as pd
import pytest

import compare_results
from bench.rows import results, tables

BASE = {
    **{"schema": "1", "run_id": "", "status": "ok", "machine": "a", "device": "cpu", "framework": "torch"},
    **{"framework_version": "2.15", "workload": "image", "model": "resnet50", "phase": "training", "scope": "device"},
    **{"precision": "float32", "compile": "0", "batch_size": "16", "image_size": "224", "unit": "images/s"},
    **{"throughput": "100", "throughput_low": "99", "throughput_high": "101", "tflops": "2.4"},
}


@pytest.fixture
def write(tmp_path):
    """Writes rows, each as changes of BASE, into results/<machine>.csv; gives the path."""

    def call(*changes, machine="a"):
        path = tmp_path / "results" / f"{machine}.csv"
        for change in changes:
            results.append(path, BASE | {"machine": machine} | change)
        return path

    return call


def summary(*paths):
    said = []
    rows = tables.read_rows(paths, said.append)
    return tables.add_peak_fraction(tables.summarize(rows), rows), said


def rate(throughput, width=0.01):
    return {
        "throughput": str(throughput),
        "throughput_low": str(throughput * (1 - width)),
        "throughput_high": str(throughput * (1 + width)),
    }


def test_one_row_keeps_its_own_interval(write):
    (row,) = summary(write({}))[0].to_dict("records")
    assert (row["value"], row["low"], row["high"], row["per"], row["rows"]) == (100, 99, 101, "images/s", 1)
    assert tables.name_work(row) == "resnet50, training, float32, batch 16, 224 px"


def test_repetitions_give_the_median_and_what_covers_all_of_them(write):
    (row,) = summary(write(rate(100), rate(90), rate(110)))[0].to_dict("records")
    assert (row["value"], row["rows"]) == (100, 3)
    assert (row["low"], row["high"]) == pytest.approx((89.1, 111.1))
    assert tables.interval(row) == "89.1 to 111.1, 3 runs"


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


def test_every_setup_is_a_line_that_says_so(write):
    base = rate(1000) | {"num_threads": "64", "power_source": "ac"}
    found, _ = summary(write(base, rate(50) | {"num_threads": "1"}, base | rate(400) | {"power_source": "battery"}))
    names = {row["value"]: tables.name_work(row).partition("224 px, ")[2] for row in found.to_dict("records")}
    assert names == {1000: "threads: 64", 50: "threads: 1", 400: "threads: 64, on battery"}
    mains = rate(10) | {"num_threads": "64"}
    found, _ = summary(write(mains, mains | {"power_source": "ac"}, machine="b"))
    assert (found["setup"].tolist(), found["rows"].tolist()) == ([""], [2])


def test_an_interrupted_run_counts_where_there_is_no_other(write):
    stopped = rate(60) | {"status": "interrupted", "commit": "later"}
    found, _ = summary(write(rate(100), stopped, stopped | {"model": "vgg16"}))
    lines = {row["model"]: (row["value"], tables.say_flags(row)) for row in found.to_dict("records")}
    assert lines == {"resnet50": (100, ""), "vgg16": (60, "interrupted")}


def test_no_doubt_of_a_repetition_is_lost(write):
    flags = ("throttled contended", "", "contended drift", "")
    (row,) = summary(write(*(rate(100 + i) | {"flags": each} for i, each in enumerate(flags))))[0].to_dict("records")
    assert tables.say_flags(row) == "throttled contended drift"


def test_published_figures_are_never_taken_together(write):
    found, _ = summary(write(rate(826) | {"source": "https://x"}, rate(1218) | {"source": "https://x"}))
    assert found["value"].tolist() == [826, 1218]


def test_other_settings_and_machines_are_other_lines(write):
    paths = write({}, {"batch_size": "32"}, {"precision": "tf32"}, {"status": "failed"}), write({}, machine="b")
    found, _ = summary(*paths)
    assert len(found) == 4
    assert sorted(found["machine"]) == ["a", "a", "a", "b"]


def test_the_fraction_of_the_peak_needs_a_peak(write):
    peak = {"workload": "matmul", "model": "matmul-peak", "phase": "", "tflops": "9.6", "unit": "products/s"}
    found, _ = summary(write({}, peak), write({}, machine="b"))
    fractions = {(row["machine"], row["model"]): row["of_peak"] for row in found.to_dict("records")}
    assert fractions[("a", "resnet50")] == 0.25
    assert math.isnan(fractions[("b", "resnet50")])
    assert found[found["model"] == "matmul-peak"]["value"].tolist() == [9.6]


def test_mixed_precision_is_beside_the_peak_of_its_sixteen_bits(write):
    peak = {"workload": "matmul", "model": "matmul-peak", "precision": "bfloat16", "tflops": "24"}
    found, _ = summary(write({"precision": "mixed_bfloat16"}, peak))
    assert found["of_peak"].tolist() == pytest.approx([0.1, 1])


def test_nobody_elses_figure_is_beside_a_peak_measured_here(write):
    peak = {"workload": "matmul", "model": "matmul-peak", "phase": "", "tflops": "700", "unit": "products/s"}
    theirs = peak | {"model": "matmul-best", "tflops": "790", "source": "https://x"}
    found, _ = summary(write(peak, theirs))
    assert found["of_peak"].tolist() == pytest.approx([1, math.nan], nan_ok=True)


def test_an_operators_interval_is_in_tflops(write):
    row = rate(1000, width=0.1) | {"workload": "matmul", "model": "matmul", "tflops": "2"}
    (row,) = summary(write(row))[0].to_dict("records")
    assert (row["value"], row["low"], row["high"], row["per"]) == (2, pytest.approx(1.8), pytest.approx(2.2), "TFLOP/s")


def broken(tmp_path, text):
    path = tmp_path / "broken.csv"
    path.write_text(text)
    return path


def header(extra=""):
    return ",".join([*results.COLUMNS]) + extra


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,2\n", "has a foreign header"),
        ("", "is empty"),
        (header() + "\n1,cut", "its last line is cut short"),
        (header(",from_the_future") + "\n", "was written by a newer version"),
        (header() + "\n" + "," * len(results.COLUMNS) + "\n", "its line 2 has"),
        (header() + "\n" + "1,2\n", "its line 2 has 2 columns, its header"),
    ],
)
def test_a_broken_file_is_named_in_one_line_and_the_others_are_read(write, tmp_path, text, why):
    found, said = summary(broken(tmp_path, text), write({}))
    assert len(found) == 1
    (line,) = said
    assert "broken.csv" in line
    assert why in line
    assert "\n" not in line


@pytest.mark.parametrize("cell", ["fast", '"3', "0", "-5", "inf"])
def test_a_cell_that_cannot_be_read_costs_its_own_file_alone(write, tmp_path, cell):
    row = ",".join(cell if column == "throughput" else BASE.get(column, "") for column in results.COLUMNS)
    paths = [write({}), broken(tmp_path, f"{header()}\n{row}\n"), write({}, machine="b")]
    said = []
    rows = tables.read_rows(paths, said.append)
    assert rows[["machine", "file"]].to_numpy().tolist() == [["a", "a.csv"], ["b", "b.csv"]]
    assert len(said) == 1
    assert "broken.csv" in said[0]


def test_what_a_network_did_not_learn_and_a_meter_that_stood_still_cost_nothing(write):
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


def test_a_file_of_an_older_schema_is_read(tmp_path):
    old = list(BASE)
    path = tmp_path / "old.csv"
    path.write_text(",".join(old) + "\n" + ",".join(BASE.values()) + "\n")
    found, said = summary(path)
    assert (said, found["value"].tolist(), found["epoch"].tolist()) == ([], [100.0], [""])


# Comparing


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.05, 1.2, "faster"),
        (0.8, 0.95, "slower"),
        (0.991, 1.009, "same"),
        (0.9, 1.1, "cannot tell"),
        (0.98, 1.005, "cannot tell"),
        (math.nan, math.nan, "cannot tell"),
    ],
)
def test_the_verdict_has_four_cases(low, high, said):
    assert compare_results.verdict(low, high) == said


@pytest.fixture
def compare(write, monkeypatch, tmp_path, capsys):
    def call(a, b, **environ):
        write(*a, machine="a")
        write(*b, machine="b")
        status = compare_results.main({"RESULTS_DIR": str(tmp_path / "results"), "A": "a", "B": "b"} | environ)
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def test_equal_work_is_compared_and_the_rest_is_listed(compare):
    a = [rate(100), rate(10) | {"model": "vgg16"}, rate(7) | {"model": "alexnet"}]
    b = [rate(200) | {"framework_version": "2.16"}, rate(5) | {"model": "vgg16"}, rate(1) | {"batch_size": "99"}]
    status, out, err = compare(a, b)
    assert (status, err) == (0, "")
    lines = [line.split(" | ") for line in out.splitlines() if line.startswith("| ")]
    assert [line[-1].rstrip(" |") for line in lines[2:]] == ["faster", "slower"]
    assert lines[2][4:6] == ["2.000", "1.960 to 2.040"]
    assert "geometric mean of 2 ratios: 1.000" in out  # 2 x 1/2
    assert "framework_version: 2.15 in A, 2.15, 2.16 in B" in out
    assert "only in A: alexnet, training, float32, batch 16, 224 px (torch)" in out
    assert "only in B: resnet50, training, float32, batch 99, 224 px (torch)" in out


def test_a_gpu_is_never_compared_with_a_cpu(compare):
    _, out, _ = compare([{}], [{"device": "cuda"}])
    assert "nothing in A and B has equal settings" in out
    _, out, _ = compare([{"device": "mps", "model": "x"}], [{"device": "cuda", "model": "x"}])
    assert "geometric mean of 1 ratios" in out


def test_ci_can_fail_on_slower(compare):
    assert compare([rate(100)], [rate(50)])[0] == 0
    assert compare([], [], FAIL_ON_SLOWER="1")[0] == 1
    assert compare([], [], FAIL_ON_SLOWER="0")[0] == 0
    status, out, err = compare([], [], FAIL_ON_SLOWER="yes")
    assert (status, out, err) == (2, "", "FAIL_ON_SLOWER='yes' must be 1 or 0\n")


def test_doubts_stand_beside_a_verdict(compare):
    _, out, _ = compare([rate(100)], [rate(80) | {"flags": "throttled"}])
    assert "| slower | B: throttled |" in out


def test_of_several_setups_the_latest_is_compared_and_named(compare):
    a = [rate(100) | {"num_threads": "64"}, rate(10) | {"num_threads": "1"}]
    _, out, _ = compare(a, [rate(20) | {"num_threads": "64"}])
    assert "geometric mean of 1 ratios: 2.000" in out
    assert "num_threads: 1 in A, 64 in B" in out


def test_where_nothing_can_be_compared_ci_hears_of_it(compare):
    assert compare([rate(1)], [rate(1) | {"model": "x"}], FAIL_ON_SLOWER="1")[0] == 1


def test_peaks_are_compared_at_whatever_size_they_were_reached(compare):
    peak = {"workload": "matmul", "model": "matmul-peak", "phase": "", "image_size": "", "unit": "products/s"}
    a = peak | {"matrix_size": "64x64x64", "tflops": "2", "batch_size": "", "throughput": "1"}
    b = peak | {"matrix_size": "32x32x32", "tflops": "4", "batch_size": "1", "memory_format": "channels_last"}
    _, out, _ = compare([a], [b])
    assert "geometric mean of 1 ratios: 2.000" in out
    _, out, _ = compare([a | {"matrix_size": "16x16x16", "tflops": "1"}], [])
    assert "geometric mean of 1 ratios: 4.000" in out  # the latest of A's two peaks, once


def test_a_wrong_side_is_one_line(compare):
    status, out, err = compare([{}], [{}], B="nothing")
    assert (status, out) == (2, "")
    assert err == "B='nothing' is no file, and no machine in results/ (there are: a, b)\n"
    status, _, err = compare([], [], A="")
    assert err == "A='' is empty: name a CSV file, or a machine that has one in results/\n"


def test_a_table_to_paste(write, monkeypatch, tmp_path, capsys):
    write({}, {"throughput": "", "throughput_low": "", "throughput_high": "", "status": "failed"})
    monkeypatch.setenv("MACHINE", "a")
    assert tables.main() == 0
    out = capsys.readouterr().out
    assert (
        "| resnet50, training, float32, batch 16, 224 px | torch 2.15 | cpu | 100 images/s | 99 to 101 | 2.4 |" in out
    )
    monkeypatch.setenv("MACHINE", "nobody")
    assert tables.main() == 1
    assert "nobody.csv does not exist" in capsys.readouterr().err


def test_own_lines_and_each_machines_first_are_kept():
    frame = pd.DataFrame({"machine": list("aaabc"), "published": [False] * 4 + [True], "value": range(5)})
    assert tables.thin(frame, 3)["value"].tolist() == [0, 1, 3]
    assert tables.thin(frame, 1)["value"].tolist() == [0]
    assert tables.thin(frame, 5) is frame


def test_figures_have_four_digits_and_no_exponent_where_they_are_large():
    assert [tables.figure(value) for value in (0.5214, 1695.96, 20153.2, 1e-05)] == ["0.5214", "1696", "20150", "1e-05"]


def test_unknown_figures_are_blank_and_no_cell_breaks_the_table():
    assert tables.figure(None) == tables.figure(math.nan) == tables.figure("") == ""
    assert tables.markdown(("a", "b"), [["x|y", ""]]) == "| a |\n| --- |\n| x/y |"
    assert pd.isna(tables.summarize(tables.read_rows([]))["rows"].max())
