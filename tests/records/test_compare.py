"""A comparison of two files; tests/outputs/compare.txt shows its ratios, verdicts and remarks."""

import compare_results
from bench import cli
from tests.rows import write


def test_a_name_without_rows_is_a_mistake(tmp_path, capsys):
    write(tmp_path, [{}], "a")
    environ = {"RESULTS_DIR": str(tmp_path), "A": "a", "B": "nothing"}
    assert cli.run_script(lambda: compare_results.main(environ)) == 2
    assert "B='nothing'" in capsys.readouterr().err
