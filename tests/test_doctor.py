"""The doctor on this machine; tests/outputs/doctor.txt shows what it prints about other ones."""

from bench import doctor


def test_a_real_framework_is_tried(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert doctor.report_framework("torch") == 0
    out = capsys.readouterr().out
    assert ("matmul verified" in out, "Python.h" in out) == (True, True)
