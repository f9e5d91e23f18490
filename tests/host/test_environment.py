"""The description of the host; the commands of other systems are replaced by recorded outputs."""

import json
import platform

import pytest

import bench
from bench.host import environment
from bench.host.environment import list_cards, read_mac
from bench.records.rows import complete_row


@pytest.mark.parametrize(
    ("cpu", "cores", "gpu", "gpu_cores", "name"),
    [
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", 4, None, None, "intel-xeon-6-79-4-cores"),
        ("AMD Ryzen 7 5800X 8-Core Processor", 16, None, None, "amd-ryzen-7-5800x-16-cores"),
        ("Apple M1 Max", 10, None, 32, "apple-m1-max-32-gpu-cores"),
        ("AMD EPYC", 2, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, "nvidia-h100-80gb-hbm3-mig-1g-10gb"),
        ("AMD EPYC", 2, "Intel(R) Arc(TM) A770 Graphics", None, "intel-arc-a770-graphics"),
    ],
)
def test_a_machine_is_named_after_the_device_that_ran(cpu, cores, gpu, gpu_cores, name):
    host = {"cpu_name": cpu, "cpu_count": cores, "gpu_cores": gpu_cores}
    host["cpu_id"] = "GenuineIntel family 6 model 79 stepping 0"
    assert environment.name_machine(host, gpu) == name


def answers(monkeypatch, **outputs):
    monkeypatch.setattr(environment, "output_of", lambda *command: outputs.get(command[0].replace("-", "_")))


@pytest.mark.parametrize(("limit", "watts"), [("450.00 W", 450), ("[N/A]", None), ("[Not Supported]", None)])
def test_a_row_has_the_driver_and_the_limit_of_the_card_that_runs(monkeypatch, limit, watts):
    others = "NVIDIA GeForce GT 1030, 0, GPU-1111, 580.159.04, 2048 MiB, 30.00 W\n"
    answers(monkeypatch, nvidia_smi=f"{others}NVIDIA GB10, 1, GPU-2222, 580.159.04, [N/A], {limit}\n")
    monkeypatch.setattr(environment, "list_cards", list_cards.__wrapped__)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert environment.find_card().memory is None
    host = environment.read_host("m")
    for device, expected in (("cuda", watts), ("cpu", None)):
        row = complete_row(host, {"device": device, "device_name": "NVIDIA GB10", "precision": "float32"})
        assert (row["power_limit_watts"], row["driver"]) == (expected, "580.159.04")


AMD = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
ARM = "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: {}\nCPU revision\t: 1\n"
PI = ARM.format("0xd0b") + "\nRevision\t: d04170\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n"
SPARK, CORTEX = ARM.format("0xd87") + ARM.format("0xd85"), "Model name: Cortex-X925\n  Model name: Cortex-A725\n"


@pytest.mark.parametrize(
    ("cpuinfo", "lscpu", "machine", "part_of_id"),
    [
        (AMD, None, "amd-epyc", "AuthenticAMD family 25 model 17 stepping 1"),
        (SPARK, CORTEX, "cortex-x925-cortex-a725", "revision 1 part 0xd85"),
        (PI, "Model name: Cortex-A76\n", "cortex-a76", "implementer 0x41 variant 0x1 part 0xd0b revision 1"),
        (ARM.format("0x000"), "Model name: -\nModel: 0\n", "aarch64-0x41-0x000", "part 0x000"),  # Docker on an M3
    ],
)
def test_a_linux_computer_tells_its_chip_and_its_power(monkeypatch, tmp_path, cpuinfo, lscpu, machine, part_of_id):
    answers(monkeypatch, lscpu=lscpu)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    read_text = lambda path: f"{cpuinfo}\n" * 2 if path == "/proc/cpuinfo" else "Discharging\n"  # noqa: E731
    monkeypatch.setattr(environment, "read_text", read_text)
    host = environment.read_linux() | {"cpu_count": 4, "gpu_cores": None}
    assert environment.name_machine(host, None).replace("-25-17", "") == f"{machine}-4-cores"
    assert (part_of_id in host["cpu_id"], host["power_source"]) == (True, None)
    (tmp_path / "class/power_supply/BAT0").mkdir(parents=True)
    (tmp_path / "class/power_supply/BAT0/status").touch()
    assert environment.read_linux()["power_source"] == "battery"


def test_variables_that_change_the_speed_are_part_of_the_setup():
    """And not the path of an installation or a cache, or what is only printed."""
    alike = "OMP_NUM_THREADS MKL_HOME MKLROOT NCCL_DEBUG TORCHINDUCTOR_CACHE_DIR CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER"
    alike += " TF_CPP_MIN_LOG_LEVEL CUDA_VERSION TORCH_NCCL_ASYNC_ERROR_HANDLING PYTHONPATH CUDA_BUILD TF_CONFIG"
    alike += " CUDA_MPS_PIPE_DIRECTORY TORCH_CUDA_ARCH_LIST KMP_TARGET_PORT KMP_EXTRA_ARGS KMP_DUPLICATE_LIB_OK"
    others = dict.fromkeys(alike.split(), "x") | {"KMP_AFFINITY": "", "NCCL_X": "10.0.0.1:80"}
    faster = "CUBLAS_WORKSPACE_CONFIG=1 CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 JAX_ENABLE_X64=1 KMP_BLOCKTIME=0"
    faster += " LD_PRELOAD=x.so:y.so MALLOC_CONF=1 OMP_PROC_BIND=1 XLA_FLAGS=1"
    environ = dict(each.split("=") for each in faster.split()) | {"LD_PRELOAD": "/home/a/x.so:/usr/y.so"}
    assert environment.find_allocator(others | environ) == faster
    assert environment.find_allocator(others) is None


@pytest.mark.parametrize(("clocks", "turbo", "mode"), [("", "1", None), ("44", "0", 0), ("43", "0", 1), ("4", "1", 1)])
def test_a_clock_that_is_capped_is_low_power_mode(tmp_path, clocks, turbo, mode):
    cpus = tmp_path / "devices/system/cpu"
    (cpus / "intel_pstate").mkdir(parents=True)
    (cpus / "intel_pstate/no_turbo").write_text(turbo)
    for number, clock in enumerate(clocks):
        policy = cpus / f"cpufreq/policy{number}"
        policy.mkdir(parents=True)
        for name, text in (("scaling_max_freq", clock), ("cpuinfo_max_freq", "4"), ("scaling_governor", "powersave")):
            (policy / name).write_text(text)
    assert environment.find_low_power_mode() == mode


def test_a_mac_tells_its_gpu_its_power_and_its_system(monkeypatch):
    profile = json.dumps({"SPDisplaysDataType": [{"sppci_cores": "32"}, {"_name": "a monitor"}]}, indent=2)
    power = "Now drawing from 'Battery Power'\n lowpowermode         1\n"
    answers(monkeypatch, system_profiler=profile, pmset=power, sysctl="Apple M1 Max\n", sw_vers="26.1\n")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(environment, "read_mac", read_mac)
    host = environment.read_host("m")
    assert (host["cpu_name"], host["gpu_cores"], host["os"]) == ("Apple M1 Max", 32, "macOS 26.1")
    assert (host["power_source"], host["low_power_mode"]) == ("battery", 1)
    missing = environment.explain_missing_gpu("torch")
    assert all(words in missing for words in ("macOS 15", "FRAMEWORK=mlx"))


def test_an_import_that_fails_is_told_with_what_may_be_the_cause(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/conda/lib")
    monkeypatch.delenv("PYTHONPATH")
    error = ImportError("Please note:\n* this\nOriginal error was: GLIBCXX_3.4")
    assert bench.explain_import(error).startswith("ImportError: GLIBCXX_3.4: unset LD_LIBRARY_PATH=")


def test_only_changed_programs_make_the_commit_dirty(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    (tmp_path / "program.py").write_text("1")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for arguments in (["init"], ["add", "."], ["commit", "-m", "first"]):
        environment.output_of("git", "-C", str(tmp_path), *identity, *arguments)
    commit = environment.find_commit()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # whoever owns the clone
    (tmp_path / "table.md").write_text("untracked, as .DS_Store is")
    assert (environment.find_commit(), len(commit)) == (commit, 12)
    (tmp_path / "program.py").write_text("2")
    assert environment.find_commit() == f"{commit}-dirty"
