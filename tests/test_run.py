"""The parent process: plans, starts children, combines and stores what they measured, and tells how a child died."""

import csv
import errno
import io
import itertools
import signal
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from bench import process, run
from bench.child import COMPARING
from bench.host import environment, meters
from bench.host.environment import NvidiaGpu, read_host
from bench.records import report, results, tables
from bench.records.rows import complete_row
from bench.settings import COMPARED, SettingError, read_runs
from image_benchmark import image_workload
from tests.fakes import Clock, FakeChild
from tests.rows import ROW, rate, read_rows


def work(child):
    """Do what MODEL says, which may be a list with an entry for each batch size: "ok/dies"."""
    batch_size = int(child.environ.get("BATCH_SIZE", 1))
    what = (child.environ["MODEL"].split("/") * batch_size)[batch_size - 1]
    of_this = {"model": what, "batch_size": batch_size}
    if what == "typo":
        child.lines.append({"mistake": "MODEL"})
        return 2
    if what in ("dies at once", "has no packages"):
        return -signal.SIGILL if what == "dies at once" else process.MISTAKE
    child.write(**of_this, **rate(9.0), status="begun", note="building")
    child.note(batch_size, "works")
    is_together = not child.requests
    if what == "is killed" and is_together:
        return -signal.SIGKILL
    if what == "never fits" or (is_together and what == "too large"):
        child.write(**of_this, status="out_of_memory", note="full")
        return 1
    rates = []
    while True:
        if not child.requests:
            child.note(batch_size, "waits")
            yield
        if "check" in child.requests.pop(0):
            break
        child.note(batch_size, "works")
        rates += [batch_size * (1 + len(rates))]
        if what == "dies":
            return -11
        if what == "interrupts":
            child.write(**of_this, **rate(5.0), status="interrupted")
        if what == "interrupts" or (what == "interrupts later" and child.number > 2):
            raise KeyboardInterrupt
    if what in ("killed", "stuck"):
        return {"killed": -9, "stuck": -signal.SIGALRM}[what]
    if what == "fails":
        child.write(**of_this, status="unsupported", note="not here")
        return 1
    if is_together:
        of_this |= {"rates": " ".join(map(str, rates)), "stop_reason": "slices"}
    device = {"device": "cuda" if what == "changes" and child.number > 1 else "cpu"}
    of_this |= {"tflops": -1.0} if what == "cannot be read" else {}
    comparing = COMPARING if what == "killed in the comparison" else ""
    child.write(**of_this, **rate(4.0 + child.number), note=comparing, **device)
    if what == "interrupts input":
        child.write(**of_this, scope="input", status="begun")
        raise KeyboardInterrupt
    if what == "no input" and child.number == 1:
        child.write(**of_this, scope="input", status="unsupported", note="no memory")
    return -9 if comparing else 0


@pytest.fixture
def children(monkeypatch, tmp_path):
    """Replace child processes by fakes; returns a namespace with those that were started, and what they did."""
    fakes = SimpleNamespace(started=[], events=[])

    def start(*arguments):
        child = FakeChild(work, *arguments)
        fakes.started.append(child)
        child.number, child.note = len(fakes.started), lambda *event: fakes.events.append(event)
        return child

    clock = Clock()
    clock.monotonic = lambda: clock.sleep(0.5) or clock.now
    monkeypatch.setattr(run, "time", clock)
    monkeypatch.setattr(process, "Child", start)
    for name, value in {"RESULTS_DIR": str(tmp_path), "MACHINE": "m", "USE_GPU": "0", "MAX_SECONDS": "1"}.items():
        monkeypatch.setenv(name, value)
    return fakes


@pytest.fixture
def run_all(children, monkeypatch, tmp_path, capfd):
    """Run a list of models; returns (status, stdout, the model of each child, stored results)."""

    def call(*models, **environ):
        for name, value in ({"MODEL": ",".join(models)} | environ).items():
            monkeypatch.setenv(name, value)
        children.started.clear()
        status = run.measure_command("image", report.describe_run)
        asked = [child.environ["MODEL"] for child in children.started]
        rows = tables.to_dicts(tables.combine(tables.load([tmp_path / "m.csv"], pytest.fail)))
        return status, capfd.readouterr().out, asked, rows

    return call


def test_rows_that_cannot_be_stored_are_printed_below_their_header(run_all, capfd, monkeypatch):
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(results, "replace_file", full)
    with pytest.raises(results.ResultsError):
        run_all("ok", "fails", RUNS="2")
    out = capfd.readouterr().out
    (row,) = csv.DictReader(io.StringIO(out[out.index("schema,") :]))
    assert (row["model"], row["process"], row["throughput"]) == ("ok", "1", "5")


def test_what_can_be_stored_is_although_another_file_cannot(tmp_path, capfd):
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(results.ResultsError, match="save them"):
        run.store(tmp_path, [ROW | {"machine": name} for name in "ab"])
    assert ([row["machine"] for row in read_rows(tmp_path / "b.csv")], ",a," in capfd.readouterr().out) == (["b"], True)


@pytest.mark.parametrize(("gpus", "tested"), [("0", {"cpu"}), ("1", {"nvidia-h200"}), ("0,1", {"cpu", "nvidia-h200"})])
def test_the_files_of_the_devices_that_are_asked_for_are_tested_first(monkeypatch, tmp_path, gpus, tested):
    monkeypatch.setattr(environment, "list_cards", lambda: [NvidiaGpu("NVIDIA H200")])
    host = dict.fromkeys(("cpu_id", "gpu_cores"), "") | {"cpu_name": "CPU", "cpu_count": 1}
    monkeypatch.setattr(environment, "read_host", lambda _: host)
    names = set()
    monkeypatch.setattr(run.resources, "check_threads", check := Mock())
    monkeypatch.setattr(results, "append", lambda path: names.add(path.stem.removesuffix("-1-cores")))
    run.read_machine(read_runs("image", {"USE_GPU": gpus}))
    assert (names, check.called) == (tested, True)


def test_three_processes_give_one_result(run_all, tmp_path):
    status, out, asked, (row,) = run_all("ok")
    assert (status, out.count("added to ")) == (0, 1)
    assert asked == ["ok"] * 3
    assert [row[name] for name in ("throughput", "throughput_low", "throughput_high")] == [6, 4.95, 7.07]
    assert row["process_rates"] == [5, 6, 7]
    stored = read_rows(tmp_path / "m.csv")
    assert [(row["process"], row["throughput"], row["group"]) for row in stored] == [
        (str(number), str(4 + number), "") for number in range(1, 4)
    ]
    assert len({row["run_id"] for row in stored}) == 1
    assert run.count_processes(read_runs("image", {"SUSTAIN": "60"})[0]) == 1  # it is long enough
    assert (row["machine"], row["device_name"], row["schema"]) == ("m", row["cpu_name"], "2")


@pytest.mark.parametrize(
    ("models", "status", "results"),
    [
        (["fails", "ok"], 0, ["fails []", "ok [6.0, 7.0]"]),
        (["fails"], 1, ["fails []"]),
        (["changes"], 0, ["changes [5.0]", "changes [6.0]"]),  # to another device
        (["no input"], 0, ["no input [5.0, 6.0]", "no input []"]),
    ],
)
def test_each_run_has_the_processes_that_it_can_have(run_all, models, status, results):
    found = run_all(*models, RUNS="2")
    rows = [f"{row['model']} {row['process_rates']}" for row in found[-1]]
    assert (found[0], rows) == (status, results)


MISTAKES = [("typo", "MODEL"), ("dies at once", r"signal 4: .*AVX.*make doctor"), ("cannot be read", "tflops '-1'")]
MISTAKES += [("has no packages", "see above")]  # which it has printed


@pytest.mark.parametrize(("model", "words"), MISTAKES)
def test_a_mistake_that_only_a_child_finds_is_one_line(run_all, model, words):
    with pytest.raises(SettingError, match=words):
        run_all(model)


def test_a_misspelt_image_model_is_told_before_anything_runs(children, monkeypatch):
    monkeypatch.setenv("MODEL", "resnet18,resnet5O")
    with pytest.raises(SettingError, match="resnet50"):
        run.measure_command("image", report.describe_run, image_workload)
    assert not children.started


@pytest.mark.parametrize(
    ("device", "device_name", "machine", "file"),
    [
        ("cuda", "NVIDIA H200", None, "nvidia-h200"),
        ("cpu", None, None, "some-1-2-cores"),
        ("cuda", "NVIDIA H200", "m", "m"),
    ],
)
def test_rows_are_stored_in_the_file_of_the_device_that_ran(monkeypatch, tmp_path, device, device_name, machine, file):
    monkeypatch.setattr(environment, "list_cards", lambda: [NvidiaGpu("NVIDIA H200", driver="580.1")])
    host = read_host(machine) | {"cpu_name": "Some CPU 1", "cpu_count": 2}
    monkeypatch.setenv("HOME", "/home/alice")
    line = {"status": "failed", "device": device, "device_name": device_name, "note": "\x1b[1mgcc\n-I/home/alice/x"}
    row = complete_row(host, line, run_id="id", process=1)
    run.store(tmp_path, [row])
    (stored,) = read_rows(tmp_path / f"{file}.csv")
    assert (stored["machine"], stored["driver"]) == (file, "580.1")
    assert stored["note"] == "\ufffd[1mgcc -I~/x"


@pytest.mark.parametrize(
    ("end", "status", "throughput", "words"),
    [
        ("killed", "out_of_memory", None, "signal 9"),
        ("stuck", "timed_out", None, "stopped"),
        ("killed in the comparison", "ok", 5, COMPARING),
    ],
)
def test_a_child_that_dies_leaves_a_row(run_all, end, status, throughput, words):
    *_, (dead,) = run_all(end, RUNS="1")
    assert (dead["status"], dead["throughput"], words in dead["note"]) == (status, throughput, True)


def test_ctrl_c_stores_what_was_complete(run_all):
    status, _, asked, (row,) = run_all("interrupts later", "ok")
    assert (status, len(asked)) == (130, 3)  # no other combination is started
    assert (row["status"], row["process_rates"]) == ("ok", [5, 6])
    status, _, _, rows = run_all("interrupts")
    assert (status, rows[-1]["status"], rows[-1]["throughput"]) == (130, "interrupted", 5)
    *_, device, pipeline = run_all("interrupts input")[-1]
    assert (device["status"], pipeline["status"]) == ("ok", "interrupted")  # so `make all` measures it again


@pytest.fixture
def compare(run_all, children):
    """Compare models, one for each batch size from 1; returns (status, stdout, rows, what the children did)."""

    def call(*models, **environ):
        sizes = ",".join(str(size) for size in range(1, len(models) + 1))
        status, out, _, rows = run_all("/".join(models), **{"BATCH_SIZE": sizes, "RUNS": "5"} | environ)
        return status, out, rows, children.events

    return call


def test_processes_that_are_compared_measure_slices_in_changing_order(compare, children):
    status, out, rows, events = compare("ok", "ok", "ok", RUNS="2")
    assert status == 0
    assert [(row["batch_size"], len(row["process_rates"])) for row in rows] == [(str(i), 2) for i in (1, 2, 3)]
    assert "2.00x BATCH_SIZE=1, from neighbouring slices: no verdict below 5 pairs (2.00 to 2.00, 2 pairs)" in out
    # One works only while all others wait; the second round begins with the last one.
    sizes = [size for size, event in events if event == "works"]
    assert sizes[:12] == [1, 2, 3, 1, 2, 3, 3, 2, 1, 1, 2, 3]
    assert sizes[len(sizes) // 2 :][:6] == [3, 2, 1, 3, 2, 1]
    assert [event for _, event in events[:8]] == ["works", "waits"] * 4
    assert {child.environ["SCOPE"] for child in children.started} == {"device"}
    _, out, _, events = compare("ok", "ok", RUNS="2", NUM_IMAGES="9", PRECISION="float32,bfloat16")
    assert [size for size, _ in events[-16:]] == [1, 1, 2, 2, 2, 2, 1, 1] * 2  # each to its end
    assert "x BATCH_SIZE=1: no verdict below 5 pairs" in out
    assert "compared: BATCH_SIZE; for PRECISION name it alone" in out


@pytest.mark.parametrize(("last", "statuses"), [("dies", ["ok", "crashed"]), ("fails", ["ok", "unsupported"])])
def test_the_other_of_two_goes_on_if_one_dies(compare, last, statuses):
    status, out, rows, _ = compare("ok", last, RUNS="2")
    assert (status, [row["status"] for row in rows]) == (0, statuses)
    assert len(rows[0]["process_rates"]) == 2
    assert "x BATCH_SIZE=1" not in out


@pytest.mark.parametrize(("last", "counts"), [("too large", [5, 5]), ("is killed", [5, 5]), ("never fits", [5, 0])])
def test_without_room_for_two_they_run_one_after_the_other(compare, caplog, last, counts):
    status, _, rows, events = compare("ok", last)
    assert (status, [len(row["process_rates"]) for row in rows]) == (0, counts)
    assert events[-2:] == [(1 + bool(counts[1]), "works")] * 2  # begins, and measures
    assert "one at a time" in caplog.text


def test_a_busy_machine_is_told_before_anything_is_measured(run_all, monkeypatch, caplog):
    monkeypatch.setattr(meters, "others_cpu_seconds", itertools.count(0, 1000).__next__)
    run_all("ok", RUNS="1")
    assert "other programs" in caplog.text


@pytest.mark.parametrize(
    ("environ", "groups"),
    [
        ({"MODEL": "alexnet,vgg11"}, "alexnet | vgg11"),
        (
            {"PHASE": "inference,training", "BATCH_SIZE": "1,2"},
            "inference 1, inference 2 | training 1, training 2",
        ),
        ({"PRECISION": "float32,bfloat16", "COMPILE": "0,1"}, "float32 0, bfloat16 0 | float32 1, bfloat16 1"),
        ({"BATCH_SIZE": "1,2", "SUSTAIN": "60"}, "1, 2"),
        ({"PHASE": "inference,training", "OPTIMIZER": "sgd,adam"}, "inference sgd | training sgd, training adam"),
        ({"BATCH_SIZE": "4,8", "NUM_DEVICES": "1,2", "PHASE": "training"}, "1 4, 1 8 | 2 4 | 2 8"),
    ],
)
def test_runs_that_differ_in_a_setting_that_is_compared_are_a_group(environ, groups):
    grouped = run.group_runs(read_runs("image", environ), next((each for each in COMPARED if each in environ), ""))
    assert " | ".join(", ".join(" ".join(each.choices.values()) for each in group) for group in grouped) == groups
    assert not any(group[0].settings.scope for group in grouped if len(group) == 1)  # it keeps input and end_to_end


def test_what_processes_log_is_shown_once(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(run, "sys", SimpleNamespace(stderr=terminal))
    with run.progress(1) as show:
        for second in range(3):
            show(FakeChild(work, ["", ""], {}), [f"07:00:0{second}  WARNING: slow", "    raise Error"])
    assert [terminal.getvalue().count(text) for text in ("07:00:00  WARNING: slow", "raise Error")] == [1, 3]
