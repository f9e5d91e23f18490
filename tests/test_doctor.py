"""The doctor: a framework that crashes is a line, and one that runs is verified."""

from bench import doctor


def test_a_framework_that_crashes_is_a_line(monkeypatch, capsys, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -ILL $$\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYTHON", str(python))
    assert doctor.examine(["torch"]) == 1
    assert "illegal instruction" in capsys.readouterr().out


def test_a_real_framework_is_tried(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert doctor.report_framework("torch") == 0
    out = capsys.readouterr().out
    assert ("matmul verified" in out, f"{tmp_path}/Python.h" in out) == (True, True)
