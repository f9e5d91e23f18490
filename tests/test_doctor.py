"""The doctor on this machine; tests/outputs/doctor.txt shows what it prints about other ones."""

from bench import doctor
from bench.host import resources
from bench.settings import read_settings


def test_a_real_framework_is_tried(monkeypatch, capsys, tmp_path):
    read = []
    monkeypatch.setattr(doctor, "read_settings", lambda *given: read.append(read_settings(*given)) or read[0])
    monkeypatch.setenv("USE_GPU", "0")  # a Mac in a virtual machine has a GPU that cannot allocate memory
    get_paths = doctor.sysconfig.get_paths  # PyTorch asks it, too
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda *how: get_paths(*how) | {"include": str(tmp_path)})
    assert doctor.report_framework("torch") == 0
    assert read[0].use_gpu is False
    out = capsys.readouterr().out
    assert ("matmul verified" in out, "Python.h" in out) == (True, True)
    monkeypatch.setattr(resources, "available_bytes", lambda: 1 / 0)  # as a run, it needs to know that
    assert doctor.report_framework("torch") == 1
