"""What the doctor says of machines that are not here."""

import ast
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import doctor, settings
from bench.machine import environment, sensors

WORKS = {
    **{"device": "cuda", "device_name": "NVIDIA H200", "framework_version": "2.15.0", "num_threads": 8},
    **{"measured_precision": "float32", "python": "3.12.3", "energy": "gpu board", "has_psutil": True},
    "heat": {"temperature_c": 61, "clock_mhz": 1980},
}


@pytest.fixture
def visit(monkeypatch, capsys):
    """The doctor's visit to a machine whose frameworks answer this; returns (exit status, lines, stderr)."""

    def call(**answers):
        monkeypatch.setattr(doctor, "try_framework", lambda name, interpreter: answers[name])
        monkeypatch.setattr(doctor, "describe_network", lambda: doctor.Finding("CIFAR-10", "ok", "answers"))
        status = doctor.main()
        said = capsys.readouterr()
        return status, dict(line.split(maxsplit=1) for line in said.out.splitlines()), said.err

    return call


def test_one_framework_that_works_is_enough(visit):
    status, said, _ = visit(torch=WORKS, tensorflow={"problem": "not installed: `make image` does it"})
    assert status == 0
    assert said["torch"] == ("ok  2.15.0, Python 3.12.3, on NVIDIA H200 (cuda): its matmul is right in float32")
    assert said["tensorflow"] == "no  not installed: `make image` does it"
    assert said["energy"] == "ok  of the gpu board"
    assert said["heat"] == "ok  temperature_c 61, clock_mhz 1980"


def test_where_nothing_can_run_it_exits_with_one(visit):
    status, said, err = visit(torch={"problem": "a"}, tensorflow={"problem": "b"})
    assert (status, err.splitlines()[-1]) == (1, "no framework can run here")
    assert "energy" not in said


def test_missing_meters_are_told_with_their_cure(visit):
    facts = WORKS | {"energy": None, "why_no_energy": "`sudo chmod` lets everybody read them", "has_psutil": False}
    _, said, _ = visit(torch=facts, tensorflow={"problem": ""})
    assert said["energy"] == "--  stays blank: `sudo chmod` lets everybody read them"
    assert said["load"] == "--  not watched: `pip install psutil`"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})", "it died of an illegal instruction"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "it died of signal 11"),
        ("raise SystemExit('Symbol not found: __ZN10tensorflow')", "Symbol not found: __ZN10tensorflow"),
        ("", "it ended without a message"),
    ],
)
def test_a_framework_may_die_without_taking_the_doctor_along(monkeypatch, program, words):
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **how: run([command[0], "-c", program], **how))
    assert words in doctor.try_framework("torch", sys.executable)["problem"]


def test_what_is_not_there_is_told_with_its_cure(monkeypatch):
    assert doctor.try_framework("torch", None)["problem"] == "not installed: `make image FRAMEWORK=torch` does it"
    monkeypatch.setenv("PYTHON", "/no/python")
    said = doctor.try_framework("torch", doctor.find_interpreter("torch"))["problem"]
    assert said == "PYTHON='/no/python' cannot be started (No such file or directory): name another interpreter"


def test_each_framework_has_the_interpreter_that_make_gives_it(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "ROOT", tmp_path)
    assert doctor.find_interpreter("torch") is None
    for venv in (".venv", ".venv-tensorflow"):
        (tmp_path / venv / "bin").mkdir(parents=True)
        (tmp_path / venv / "bin" / "python").touch()
    for system, venv in (("linux", ".venv-tensorflow"), ("darwin", ".venv")):
        monkeypatch.setattr(settings.sys, "platform", system)
        assert Path(doctor.find_interpreter("tensorflow")).parts[-3] == venv


def test_a_real_framework_is_tried():
    facts = json.loads(json.dumps(doctor.report_framework("torch")))
    assert facts["measured_precision"] == "float32"
    assert doctor.describe_framework("torch", facts).state in ("ok", "--")
    assert bool(facts["energy"]) != bool(facts["why_no_energy"])


def test_a_gpu_that_is_not_seen_is_told(monkeypatch):
    monkeypatch.setattr(environment, "find_nvidia", lambda: ("NVIDIA H200", "470.1"))
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")
    assert "does not see the NVIDIA H200: it may be built for CPUs, or driver 470.1" in doctor.missing_gpu(
        "torch", "cpu"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(environment, "hides_cards", lambda: True)
    assert "CUDA_VISIBLE_DEVICES='' hides it" in doctor.missing_gpu("torch", "cpu")
    assert doctor.missing_gpu("torch", "cuda") == ""
    monkeypatch.setattr(doctor.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "arm64")
    assert "does not see the GPU" in doctor.missing_gpu("tensorflow", "cpu")


def test_what_slows_or_hinders_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "find_low_power_mode", lambda: 1)
    assert doctor.describe_power().state == "no"
    monkeypatch.setattr(environment, "find_low_power_mode", lambda: None)
    monkeypatch.setattr(environment, "find_power_source", lambda: "battery")
    assert "plug it in" in doctor.describe_power().words
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    assert "unset PYTORCH_ENABLE_MPS_FALLBACK" in doctor.describe_fallback().words
    monkeypatch.setattr(sensors, "read_thermal_pressure", lambda: "heavy")
    assert [f.words for f in doctor.describe_meters(WORKS) if f.subject == "heat"] == ["thermal pressure is heavy"]
    (tmp_path / "file").touch()
    assert doctor.describe_results(tmp_path / "file").state == "no"
    assert doctor.describe_results(tmp_path / "new" / "folder").state == "ok"


def test_without_a_network_cifar_may_be_here_already(tmp_path):
    nowhere = "https://host.invalid/cifar-10-binary.tar.gz"
    assert doctor.describe_network(nowhere, tmp_path).state == "--"
    (tmp_path / "cifar-10-binary.tar.gz.12.part").touch()
    assert doctor.describe_network(nowhere, tmp_path).state == "--"
    (tmp_path / "cifar-10-binary.tar.gz").touch()
    assert doctor.describe_network(nowhere, tmp_path).state == "ok"


def test_an_examination_that_fails_is_a_finding(capsys):
    def fails():
        raise PermissionError(13, "Permission denied")

    doctor.print_findings("results", fails)
    assert capsys.readouterr().out.startswith("results      --  cannot be checked: PermissionError")


def test_a_python_that_has_gone_is_told_with_its_cure(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "ROOT", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(tmp_path / "gone")
    assert "`make clean`" in doctor.try_framework("torch", doctor.find_interpreter("torch"))["problem"]


@pytest.mark.parametrize("file", ["doctor", "machine/environment", "machine/sensors", "settings"])
def test_the_python_of_a_bare_mac_can_read_it(file):
    assert ast.parse(Path(f"bench/{file}.py").read_text(), feature_version=(3, 9)).body
