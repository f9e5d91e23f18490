"""Comparisons of two files: ratios, verdicts, and what cannot be compared."""

import subprocess
import sys

import pytest

import compare_results
from bench import cli
from tests.records import examples
from tests.records.examples import write

FIVE = {"process_rates": "1 2 3 4 5"}


def rate(throughput, width=0.01):
    return examples.rate(throughput, width) | FIVE


@pytest.fixture
def compare(tmp_path, capsys):
    def call(a, b, **environ):
        write(tmp_path / "results", a, "a")
        write(tmp_path / "results", b, "b")
        status = cli.run_script(
            lambda: compare_results.main({"RESULTS_DIR": str(tmp_path / "results"), "A": "a", "B": "b"} | environ)
        )
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def lines_of(out):
    """The rows of a Markdown table as lists of cells, without its head."""
    return [line.strip("| ").split(" | ") for line in out.splitlines() if line.startswith("| ")][2:]


def test_equal_work_is_compared_and_the_rest_is_listed(compare):
    a = [rate(100), rate(10) | {"model": "vgg16"}, rate(7) | {"model": "alexnet"}]
    b = [rate(200) | {"framework_version": "2.16"}, rate(5) | {"model": "vgg16"}, rate(1) | {"batch_size": "99"}]
    status, out, err = compare(a, b)
    assert (status, err) == (0, "")
    assert [line[-1] for line in lines_of(out)] == ["faster", "slower"]
    assert lines_of(out)[0][4:6] == ["2.000", "1.960 to 2.040"]
    assert "mean of 2 ratios: 1.000" in out  # 2 x 1/2
    assert "framework_version: 2.15 in A, 2.15, 2.16 in B" in out
    assert "only in A: alexnet, training, float32, batch 16, 224 px (torch)" in out
    assert "only in B: resnet50, training, float32, batch 99, 224 px (torch)" in out


def test_a_gpu_is_never_compared_with_a_cpu(compare):
    assert not lines_of(compare([rate(1)], [rate(1) | {"device": "cuda"}])[1])
    assert len(lines_of(compare([{"device": "mps", "model": "x"}], [{"device": "cuda", "model": "x"}])[1])) == 1


def test_ci_can_fail_on_slower(compare):
    assert compare([rate(100)], [rate(50)])[0] == compare([], [], FAIL_ON_SLOWER="0")[0] == 0
    assert compare([], [], FAIL_ON_SLOWER="1")[0] == 1
    status, out, err = compare([], [], FAIL_ON_SLOWER="yes")
    assert (status, out) == (2, "")
    assert "FAIL_ON_SLOWER='yes'" in err


def test_ci_can_fail_if_nothing_can_be_compared(compare):
    assert compare([rate(1)], [rate(1) | {"model": "x"}], FAIL_ON_SLOWER="1")[0] == 1


def test_flags_are_shown_with_the_verdict(compare):
    _, out, _ = compare([rate(100)], [rate(80) | {"flags": "throttled"}])
    assert "| slower | B: throttled |" in out


def test_of_several_setups_the_latest_is_compared_and_named(compare):
    a = [rate(100) | {"num_threads": "64"}, rate(10) | {"num_threads": "1"}]
    _, out, _ = compare(a, [rate(20) | {"num_threads": "64"}])
    assert [line[4] for line in lines_of(out)] == ["2.000"]
    assert "num_threads: 1 in A, 64 in B" in out


def test_peaks_are_compared_at_whatever_size_they_were_reached(compare):
    peak = {"workload": "matmul", "model": "matmul-peak", "phase": "", "image_size": "", "unit": "matmuls/s"}
    a = peak | {"matrix_size": "64x64x64", "tflops": "2", "batch_size": "", "throughput": "1"}
    b = peak | {"matrix_size": "32x32x32", "tflops": "4", "batch_size": "1", "memory_format": "channels_last"}
    assert [line[4] for line in lines_of(compare([a], [b])[1])] == ["2.000"]
    _, out, _ = compare([a | {"matrix_size": "16x16x16", "tflops": "1"}], [])
    assert [line[4] for line in lines_of(out)] == ["4.000"]  # the latest of A's two peaks, once


def test_rows_of_different_methods_are_compared_with_a_remark(compare):
    _, out, _ = compare([rate(100) | {"method_version": "1"}], [rate(100) | {"method_version": "2"}])
    assert "method_version: 1 in A, 2 in B" in out
    assert "method_version" not in compare([], [], A="b", B="b")[1]


def test_verdicts_follow_from_the_intervals(compare):
    a = [rate(100, width=0.3), rate(7, 0.001) | {"model": "alexnet"}]
    _, out, _ = compare(a, a)
    assert sorted(line[5:7] for line in lines_of(out)) == [
        ["0.538 to 1.857", "cannot tell"],
        ["0.998 to 1.002", "same"],
    ]
    assert "cannot tell (1 of 2)" in out


def test_a_single_process_has_a_ratio_and_no_verdict(compare):
    single = {"process_rates": "100"}
    status, out, _ = compare([rate(100)], [rate(50) | single], FAIL_ON_SLOWER="1")
    assert lines_of(out)[0][4] == "0.500"
    assert "slower" not in out
    assert "no verdict (1 of 1)" in out
    assert status == 1  # nothing could be compared


def test_a_column_twice_is_one_line(compare, tmp_path):
    path = write(tmp_path / "results", [{}], "a")
    path.write_text("".join(f"{line},1\n" for line in path.read_text().splitlines()).replace(",1\n", ",schema\n", 1))
    status, out, err = compare([], [{}])
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "schema twice" in err


def test_a_wrong_side_is_one_line(compare):
    status, out, err = compare([{}], [{}], B="nothing")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "B='nothing'" in err
    assert "a, b" in err
    status, _, err = compare([], [], A="")
    assert (status, err.count("\n")) == (2, 1)
    assert "A=''" in err


def test_a_terminal_gets_lines_that_fit(compare, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    long = {"framework_version": "2.15.0+cu132", "flags": "throttled contended drift outliers", "compile": "1"}
    _, out, _ = compare([rate(100) | long], [rate(80) | long])
    assert max(map(len, out.splitlines())) <= 80
    assert "B is: slower" in out
    assert not lines_of(out)


def test_a_changed_machine_is_a_warning_and_changes_no_verdict(compare):
    fast, slow = ({"canary_seconds": seconds, "machine": "x"} for seconds in ("0.001", "0.0013"))
    _, out, _ = compare([rate(100) | fast], [rate(80) | slow])
    assert lines_of(out)[0][4:7] == ["0.800", "0.784 to 0.816", "slower"]
    assert "1.30 times" in out


def test_the_canaries_of_two_machines_are_not_compared(compare):
    _, out, _ = compare([rate(100) | {"canary_seconds": "0.001"}], [rate(80) | {"canary_seconds": "0.0013"}])
    assert "canary" not in out


def test_it_needs_no_framework_no_numpy_and_no_pandas():
    program = "import sys, compare_results; print({'torch', 'numpy', 'pandas'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
