"""The doctor on this machine; tests/outputs/doctor.txt shows what it prints about other ones."""

from bench import doctor
from bench.settings import read_settings
from tests.conftest import GIVEN


def test_a_real_framework_is_tried(monkeypatch, capsys, tmp_path):
    # A Mac in a virtual machine has a GPU that cannot allocate memory.
    monkeypatch.setattr(doctor, "read_settings", lambda command, environ: read_settings(command, environ | GIVEN))
    get_paths = doctor.sysconfig.get_paths  # PyTorch asks it, too
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda *how: get_paths(*how) | {"include": str(tmp_path)})
    assert doctor.report_framework("torch") == 0
    out = capsys.readouterr().out
    assert ("matmul verified" in out, "Python.h" in out) == (True, True)
