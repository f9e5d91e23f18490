"""Two machines side by side: ratios, verdicts, and what cannot be compared."""

import math

import pytest

import compare_results
from bench import cli
from tests.rows.examples import rate, write


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
    peak = {"workload": "matmul", "model": "matmul-peak", "phase": "", "image_size": "", "unit": "matmuls/s"}
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
