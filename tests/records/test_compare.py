"""A comparison of two files; tests/outputs/compare.txt shows its ratios, verdicts and remarks."""

import pytest

import compare_results
from bench import processes
from bench.records.columns import COLUMNS
from tests.rows import write


@pytest.mark.parametrize("name", ["nothing", "header"])
def test_a_name_without_rows_is_a_mistake(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setenv("HOME", str(write(tmp_path, [{}], "a").parent))
    (tmp_path / "header.csv").write_text(",".join(COLUMNS) + "\n")
    environ = {"RESULTS_DIR": str(tmp_path), "A": "~/a.csv", "B": name}
    assert processes.run_script(lambda: compare_results.main(environ)) == 2
    assert f"B={name!r}" in capsys.readouterr().err


def test_a_line_that_cannot_be_read_is_told(tmp_path, capsys):
    path = write(tmp_path, [{}, {"model": "vgg11"}], "a")
    path.write_text(path.read_text().replace("vgg11", "vgg11,"))
    compare_results.main({"RESULTS_DIR": str(tmp_path), "A": "a", "B": "a"})
    assert "a.csv, line 3" in capsys.readouterr().err
