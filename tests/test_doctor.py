"""What the doctor reports about machines that are not here."""

import ast
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bench import doctor, frameworks, processes, settings
from bench.host import environment, meters, resources, sensors

CARD = frameworks.Device("cuda", "NVIDIA H200", "2.15.0", 8)
COUNTER = SimpleNamespace(power_scope="gpu board")
HEAT = {"temperature_c": 61, "clock_mhz": 1980, "throttle_reasons": ""}


@pytest.fixture
def lines_of(capsys):
    """Return {subject: (state, words)} of what a function prints."""

    def call(function, *arguments):
        function(*arguments)
        lines = capsys.readouterr().out.splitlines()
        return {line[:12].strip(): (line[13:16].strip(), line[17:]) for line in lines}

    return call


@pytest.fixture
def describe(lines_of):
    """Return the lines about a framework that runs."""

    def call(device=CARD, instruments=None, driver=None):
        instruments = instruments or meters.Instruments(COUNTER, lambda: HEAT)
        bench = SimpleNamespace(device=device, instruments=instruments, host=SimpleNamespace(driver=driver))
        return lines_of(doctor.describe_bench, "torch", bench, "float32")

    return call


def test_a_framework_that_runs_and_its_meters(monkeypatch, describe):
    monkeypatch.setattr(meters, "cpu_quota", lambda: None)
    found = describe()
    assert [state for state, _ in found.values()] == ["ok"] * 4
    said = " ".join(words for _, words in found.values())
    assert all(each in said for each in ("2.15.0", "NVIDIA H200 (cuda)", "gpu board", "temperature_c 61"))


def test_missing_meters_and_how_to_get_them(monkeypatch, describe):
    monkeypatch.setattr(sensors, "psutil", None)
    found = describe(instruments=meters.Instruments(why_no_energy="`sudo chmod` lets everybody read them"))
    assert [found[subject][0] for subject in ("energy", "load", "heat")] == ["--"] * 3
    assert "sudo chmod" in found["energy"][1]
    assert "pip install psutil" in found["load"][1]
    monkeypatch.setattr(sensors, "read_thermal_pressure", lambda: "heavy")
    assert describe()["heat"][0] == "no"


def test_a_gpu_that_the_framework_does_not_find_is_explained_as_in_a_run(describe):
    on_cpu = replace(CARD, device="cpu", device_name="AMD EPYC")
    assert describe(on_cpu)["torch"][0] == "ok"
    state, words = describe(on_cpu, driver="580.1")["torch"]
    assert state == "--"
    assert words.endswith(environment.explain_missing_gpu("torch", "580.1"))
    assert describe(driver="580.1")["torch"][0] == "ok"


@pytest.fixture
def visit(monkeypatch, capsys):
    """Run the doctor where each framework's process is this program; returns (exit status, lines, stderr)."""
    run = processes.run_process

    def call(programs, interpreter=sys.executable):
        monkeypatch.setattr(doctor, "find_interpreter", lambda name: interpreter)
        monkeypatch.setattr(
            processes, "run_process", lambda cmd, *how, **kept: run([cmd[0], "-c", programs[cmd[-1]]], *how, **kept)
        )
        monkeypatch.setattr(doctor, "check_network", lambda: None)
        monkeypatch.setattr(doctor, "FRAMEWORKS", ("torch", "tensorflow"))
        status = doctor.main()
        said = capsys.readouterr()
        return status, said.out.splitlines(), said.err

    return call


FAILS = "print('x  no  y'); raise SystemExit(1)"


def test_one_framework_that_runs_is_enough_and_quick_findings_come_before_them(visit):
    status, lines, _ = visit({"torch": FAILS, "tensorflow": "print('tensorflow   ok  2.21')"})
    assert status == 0
    assert lines[-2:] == ["x  no  y", "tensorflow   ok  2.21"]
    assert "memory" in [line.split()[0] for line in lines[:-2]]
    status, _, err = visit({"torch": FAILS, "tensorflow": FAILS})
    assert status == 1
    assert err.splitlines()[-1].startswith("no framework can run here")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})", "illegal instruction"),
        (f"print('torch ok', flush=True); import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "signal 11"),
        ("raise SystemExit('Symbol not found: __ZN10tensorflow')", "Symbol not found: __ZN10tensorflow"),
        ("", "it ended without a message"),
    ],
)
def test_a_framework_that_crashes_is_a_finding(visit, program, words):
    status, lines, _ = visit({"torch": program, "tensorflow": program})
    assert status == 1
    assert lines[-1].startswith("tensorflow   no")
    assert words in lines[-1]


def test_a_python_that_is_missing_is_reported_with_the_fix(visit, monkeypatch):
    assert "`make image FRAMEWORK=torch`" in visit({}, interpreter=None)[1][-2]
    assert "`make clean`" in visit({"torch": "", "tensorflow": ""}, interpreter="/no/python")[1][-1]
    monkeypatch.setenv("PYTHON", "/no/python")
    *_, line = visit({"torch": "", "tensorflow": ""}, interpreter="/no/python")[1]
    assert "PYTHON='/no/python'" in line
    assert "`make clean`" not in line


def test_each_framework_has_the_interpreter_that_make_uses(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "ROOT", tmp_path)
    assert doctor.find_interpreter("torch") is None
    for venv in (".venv", ".venv-tensorflow"):
        (tmp_path / venv / "bin").mkdir(parents=True)
        (tmp_path / venv / "bin" / "python").symlink_to(tmp_path / "gone")  # it is found all the same
    for system, venv in (("linux", ".venv-tensorflow"), ("darwin", ".venv")):
        monkeypatch.setattr(settings.sys, "platform", system)
        assert Path(doctor.find_interpreter("tensorflow")).parts[-3] == venv


@pytest.mark.parametrize("version", [None, "2.8.0"])
def test_a_real_framework_is_tried_and_one_that_is_too_old_is_a_finding(monkeypatch, capsys, version):
    if version:
        monkeypatch.setattr(frameworks.metadata, "version", lambda package: version)
    assert doctor.report_framework("torch") == int(version is not None)
    out = capsys.readouterr().out
    subjects = [line.split()[0] for line in out.splitlines()]
    assert f"torch {version}" in out or subjects == ["torch", "energy", "load", "heat"]


@pytest.mark.parametrize(("mode", "source"), [(1, None), (None, "battery")])
def test_slow_power_is_reported(monkeypatch, lines_of, mode, source):
    monkeypatch.setattr(environment, "find_low_power_mode", lambda: mode)
    monkeypatch.setattr(environment, "find_power_source", lambda: source)
    assert lines_of(doctor.check_power)["power"][0] == "no"


def test_what_hinders_is_reported(monkeypatch, capsys, lines_of, tmp_path):
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    doctor.check_variables()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("environment  no")
    assert "CUDA_LAUNCH_BLOCKING=1" in second
    (tmp_path / "file").touch()
    assert lines_of(doctor.check_results, tmp_path / "file")["results"][0] == "no"
    assert lines_of(doctor.check_results, tmp_path / "new" / "folder")["results"][0] == "ok"


@pytest.mark.parametrize("free", [None, 2**30])
def test_free_memory_is_reported(monkeypatch, lines_of, free):
    monkeypatch.setattr(resources, "available_bytes", lambda: free)
    _, words = lines_of(doctor.check_memory)["memory"]
    assert ("1.0 GiB available" in words) == bool(free)


def test_without_a_network_cifar_may_be_here_already(lines_of, tmp_path):
    nowhere = "https://host.invalid/cifar-10-binary.tar.gz"
    for suffix, state in ((None, "--"), (".12.part", "--"), ("", "ok")):
        if suffix is not None:
            (tmp_path / f"cifar-10-binary.tar.gz{suffix}").touch()
        assert lines_of(doctor.check_network, nowhere, tmp_path)["CIFAR-10"][0] == state


def test_a_check_that_fails_is_a_finding(capsys):
    def fails():
        raise PermissionError(13, "Permission denied")

    doctor.run_check("results", fails)
    assert "PermissionError" in capsys.readouterr().out


@pytest.mark.parametrize(
    "file", ["doctor", "host/environment", "host/ranks", "host/resources", "host/sensors", "settings"]
)
def test_the_python_of_a_bare_mac_can_read_it(file):
    assert ast.parse(Path(f"bench/{file}.py").read_text(), feature_version=(3, 9)).body


def test_a_framework_that_hangs_is_ended_with_the_processes_it_started(visit, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "TRY_SECONDS", 2)
    pid = tmp_path / "pid"
    hangs = f"import subprocess; open({str(pid)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid)); input()"
    status, lines, _ = visit({"torch": hangs, "tensorflow": "print('tensorflow   ok  2.21')"})
    assert status == 0
    assert lines[-2].startswith("torch        no")
    assert "2 s" in lines[-2]
    deadline = time.monotonic() + 10
    while psutil.pid_exists(int(pid.read_text())) and psutil.Process(int(pid.read_text())).status() != "zombie":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ctrl_c_while_a_framework_is_tried_ends_the_doctor(visit, monkeypatch):
    interrupts = "import os, signal; os.kill(os.getppid(), signal.SIGINT); signal.pause()"
    with pytest.raises(KeyboardInterrupt):
        visit({"torch": interrupts, "tensorflow": interrupts})


def test_only_two_files_start_processes():
    importers = [path for path in Path("bench").rglob("*.py") if "import subprocess" in path.read_text()]
    assert sorted(map(str, importers)) == ["bench/host/environment.py", "bench/processes.py"]


def test_a_containers_quota_hides_other_programs_load(monkeypatch, describe):
    monkeypatch.setattr(meters, "cpu_quota", lambda: 0.5)
    assert describe()["load"][0] == "--"
