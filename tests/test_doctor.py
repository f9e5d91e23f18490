"""The doctor on this machine; tests/outputs/doctor.txt shows what it prints about other ones."""

from bench import doctor


def test_a_real_framework_is_tried(capsys):
    assert doctor.report_framework("torch") == 0
    assert "matmul verified" in capsys.readouterr().out
