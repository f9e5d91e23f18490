"""What a run prints: any status with its note, and lines that fit the terminal."""

import pytest

from bench.records import columns, report

ROW = dict.fromkeys(columns.COLUMNS) | {
    **{"status": "ok", "flags": "", "note": "", "workload": "image", "model": "resnet50", "phase": "inference"},
    **{"scope": "device", "framework": "torch", "framework_version": "2.15.0+cu132", "device": "cpu"},
    **{"device_name": "AMD EPYC with a rather long name", "precision": "float32", "batch_size": 16, "num_threads": 2},
    **{"image_size": 224, "memory_format": "channels_first", "unit": "images/s", "first_step_seconds": 1.4},
}
MEASURED = {"throughput": 13.5, "throughput_low": 12.6, "throughput_high": 13.7, "windows": 9}
LIMITED = {"bottleneck": "device", "note": f"limited by the model: {'many words ' * 15}; more"}


@pytest.mark.parametrize(("columns", "width"), [(80, 80), (100, 100), (20, 60)])
def test_lines_fit_the_terminal_down_to_60_columns(monkeypatch, columns, width):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = report.describe_task(ROW).splitlines()
    lines += report.describe_result(ROW | MEASURED | LIMITED | {"flags": "drift throttled"}).splitlines()
    lines += report.explain({"drift", "contended", "implausible"}).splitlines()
    assert width - 30 < max(map(len, lines)) <= width


def test_lines_stay_whole_without_a_terminal():
    assert len(report.describe_task(ROW).splitlines()) == 1
    *_, last = report.describe_result(ROW | MEASURED | LIMITED).splitlines()
    assert last.strip().startswith("limited by the model")
    assert "more" not in last


@pytest.mark.parametrize("measured", [{}, MEASURED])
def test_any_status_is_shown_with_its_note(measured):
    text = report.describe_result(ROW | measured | {"status": "work_skipped", "note": "steps are missing"})
    assert "work_skipped: steps are missing" in text
    assert ("13.5 images/s" in text) == bool(measured)


def test_an_interrupted_row_holds_complete_windows():
    assert "interrupted: the row contains" in report.describe_result(ROW | MEASURED | {"status": "interrupted"})


def canary(seconds, when, **changes):
    row = {"canary_seconds": str(seconds), "timestamp": when, "run_id": when}
    return dict.fromkeys(columns.COLUMNS, "") | row | changes


def test_a_machine_that_was_faster_before_is_reported():
    best = canary(0.001, "2026-11-20T10:00:00", device="cpu", python="3.11.7", framework="torch")
    now = canary(0.0014, "2026-11-22T10:00:00", device="cpu", python="3.11.7", framework="tensorflow")
    said = report.describe_slowdown([now], [best, now])
    assert "1.40" in said
    assert "2026-11-20 10:00" in said
    assert report.describe_slowdown([now | {"canary_seconds": "0.00109"}], [best, now]) == ""
    assert report.describe_slowdown([canary("", "")], [best]) == ""
    on_gpu = [row | {"device": "cuda"} for row in (best, now)]  # there the canary is the framework's
    assert report.describe_slowdown(on_gpu[1:], on_gpu) == ""
    both = [best | {"run_id": "2", "canary_seconds": "0.01", "device": "cuda"}, now]
    assert "1.40" in report.describe_slowdown(both, [best, *both])  # two devices are not mixed
