"""Comparisons of two files: ratios, verdicts, and what cannot be compared."""

import re

import pytest

import compare_results
from bench import cli
from tests import rows
from tests.rows import write

FIVE = {"process_rates": "1 2 3 4 5"}


def rate(throughput, width=0.01):
    return rows.rate(throughput, width) | FIVE


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
    """The lines of the comparison as lists of their cells that are not blank."""
    return [re.split(" {2,}", line.strip()) for line in out.splitlines() if re.match(r" +[0-9.]+ ", line)]


def test_equal_work_is_compared_and_the_rest_is_listed(compare):
    a = [rate(100), rate(10) | {"model": "vgg16"}, rate(7) | {"model": "alexnet"}]
    b = [rate(200) | {"framework_version": "2.16"}, rate(5) | {"model": "vgg16"}, rate(1) | {"batch_size": "99"}]
    single = rows.rate(9) | {"model": "vgg11", "process_rates": "9"}
    status, out, err = compare([*a, single], [*b, single])
    assert (status, err) == (0, "")
    faster, slower, single = lines_of(out)
    assert faster[:3] == ["2.000", "1.960 to 2.040", "faster"]
    assert slower[2] == "slower"
    assert single[:4] == ["1.000", "9", "9", "images/s"]  # no verdict from a single process
    assert "framework_version: 2.15 in A, 2.15, 2.16 in B" in out
    assert "only in A: alexnet" in out


def test_a_gpu_is_compared_with_a_gpu_and_never_with_a_cpu(compare):
    _, out, _ = compare(
        [rate(1), {"device": "mps", "model": "x"}], [{"device": "cuda"}, {"device": "cuda", "model": "x"}]
    )
    assert len(lines_of(out)) == 1


def test_a_name_without_rows_is_a_mistake_and_steps_of_make_best_are_left_out(compare):
    assert compare([rate(100)], [rate(50)], B="nothing")[0] == 2
    tuned = rate(500) | {"search": "a", "timestamp": "2099-01-01T00:00:00+00:00"}
    assert "0.500" in compare([rate(100)], [rate(50), tuned])[1]


def test_peaks_are_compared_at_whatever_size_they_were_reached(compare):
    peak = {"workload": "matmul", "model": "matmul-peak", "phase": "", "image_size": "", "unit": "matmuls/s"}
    a = peak | {"matrix_size": "64x64x64", "tflops": "2", "batch_size": "", "throughput": "1"}
    b = peak | {"matrix_size": "32x32x32", "tflops": "4", "batch_size": "1", "memory_format": "channels_last"}
    assert [line[0] for line in lines_of(compare([a], [b])[1])] == ["2.000"]
    _, out, _ = compare([a | {"matrix_size": "16x16x16", "tflops": "1"}], [])
    assert [line[0] for line in lines_of(out)] == ["4.000"]  # the latest of A's two peaks, once


def test_a_changed_machine_is_a_warning_and_changes_no_verdict(compare):
    fast, slow = ({"canary_seconds": seconds, "machine": "x"} for seconds in ("0.001", "0.0013"))
    _, out, _ = compare([rate(100) | fast], [rate(80) | slow])
    assert lines_of(out)[0][:3] == ["0.800", "0.784 to 0.816", "slower"]
    assert "1.30 times" in out
