"""Comparisons of two files: ratios, verdicts, and what cannot be compared."""

import pytest

import compare_results
from bench import cli
from tests.records.examples import rate, write


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
    assert not lines_of(compare([{}], [{"device": "cuda"}])[1])
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


def test_rows_of_different_methods_are_compared_with_a_warning(compare):
    rows = [rate(100) | {"method_version": "1"}, rate(7) | {"model": "vgg16", "method_version": "2"}]
    _, out, _ = compare(rows, [row | {"method_version": "2"} for row in rows])
    assert "method_version: 1, 2 in A, 2 in B" in out
    assert "1 of 2 comparisons" in out
    assert "method_version" not in compare([], [], A="b", B="b")[1]


def test_an_interval_that_tells_nothing_is_blank_and_explained_once(compare):
    rows = [rate(100, width=0.3), rate(10, width=0.9) | {"model": "vgg16"}, rate(7, 0.001) | {"model": "alexnet"}]
    _, out, _ = compare(rows, rows)
    shown = [line[5:7] for line in lines_of(out)]
    assert shown == [["0.538 to 1.857", "cannot tell"], ["", "cannot tell"], ["0.998 to 1.002", "same"]]
    (why,) = [line for line in out.splitlines() if line.startswith("cannot tell (2 of 3)")]
    assert "RUNS" in why


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


def test_a_single_process_gets_the_spread_between_processes(compare):
    """Four processes of another batch size differ by up to 20 %: a change of 10 % between single ones says nothing."""
    several = [rate(value) | {"batch_size": "99", "timestamp": str(i)} for i, value in enumerate([100, 110, 105, 120])]
    (known,) = lines_of(compare([*several, rate(100)], [rate(110)])[1])
    (alone,) = lines_of(compare([rate(100)], [rate(110)])[1])
    assert (known[-1], alone[-1]) == ("cannot tell", "faster")


def test_a_change_that_the_canary_explains_is_not_a_verdict(compare):
    fast, slow = ({"canary_seconds": seconds, "machine": "x"} for seconds in ("0.001", "0.0013"))
    a = [rate(100) | fast, rate(100) | fast | {"model": "vgg16"}]
    _, out, _ = compare(a, [rate(80) | slow, rate(60) | slow | {"model": "vgg16"}])
    assert [line[-1] for line in lines_of(out)] == ["cannot tell", "slower"]
    assert "1.30 times slower" in out


def test_the_canaries_of_two_machines_are_not_compared(compare):
    _, out, _ = compare([rate(100) | {"canary_seconds": "0.001"}], [rate(80) | {"canary_seconds": "0.0013"}])
    assert lines_of(out)[0][-1] == "slower"
