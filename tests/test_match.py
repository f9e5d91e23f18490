"""make match: what a published result asks for is measured with equal settings, and stands next to it."""

import math
from pathlib import Path

import pytest

import match_results
from bench.plots import frames
from bench.records import match
from bench.records.likeness import work_of
from bench.records.rows import work_cells
from bench.settings import SettingError, read_fixed_run
from tests.rows import GPU, PEAK, rate, write


@pytest.fixture(scope="module")
def published():
    """The rows of results/published.csv by machine."""
    return match.group_published(frames.load(Path("results"), pytest.fail).lines)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("3090", ["NVIDIA RTX 3090"]),
        ("rtx 3090", ["NVIDIA RTX 3090"]),
        ("NVIDIA GeForce RTX 4090", ["NVIDIA RTX 4090"]),
        ("Apple M1 (CPU)", ["Apple M1 (CPU)"]),
        ("h200", ["NVIDIA H200"]),
        ("nobody's", []),
    ],
)
def test_a_machine_is_found_as_people_type_it(published, typed, found):
    assert match.find_names(typed, published) == found


def test_a_name_of_several_machines_or_of_none_is_one_line(published):
    for typed, words in (("M1 Max", "Apple M1 Max (CPU); "), ("nobody's", "published.csv")):
        with pytest.raises(SettingError, match="B=") as error:
            match.choose_name(typed, published)
        assert words in str(error.value)
        assert "\n" not in str(error.value)


SETTINGS = [
    (957, "PRECISION=mixed_float16 COMPILE=1 PHASE=training BATCH_SIZE=64 IMAGE_SIZE=224 MODEL=resnet50 SCOPE=device"),
    (1065, "PRECISION=mixed_float16 COMPILE=1 PHASE=training BATCH_SIZE=64 SEQUENCE_LENGTH=128 MODEL=distilbert"),
    (47.4, "PRECISION=float16 PHASE=decode BATCH_SIZE=1 NEW_TOKENS=512 DEPTH=0 MODEL=llama-3.1-8b"),
    (106.62, "PRECISION=float32 PHASE=inference BATCH_SIZE=64 MODEL=resnet50 SCOPE=end_to_end"),
]


@pytest.mark.parametrize(("figure", "line"), SETTINGS)
def test_the_settings_are_those_of_the_source(published, figure, line):
    (row,) = (row for row in published["NVIDIA RTX 3090"] if row["throughput"] == figure)
    command, environ = match.settings_of(row, "torch")
    assert (command, {f"{name}={text}" for name, text in environ.items()}) == (row["workload"], set(line.split()))
    assert match.name_command(row).endswith(f" make {command}")


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"precision": ""}, "precision not stated"),
        ({"precision": "mxfp4"}, "another precision"),
        ({"scope": "end_to_end", "workload": "transformer"}, "another scope"),
    ],
)
def test_a_row_that_does_not_state_its_work_has_no_settings(published, cells, reason):
    row = next(row for row in published["NVIDIA RTX 3090"] if row["throughput"] == 957)
    with pytest.raises(SettingError, match=reason):
        match.settings_of(row | cells, "torch")
    assert match.name_command(row | cells) == ""


@pytest.mark.parametrize("cells", [{"model": "a-new-model"}, {"weight_bits": "5"}])
def test_what_cannot_be_typed_here_has_no_command(published, cells):
    row = next(row for row in published["NVIDIA RTX 3090"] if row["throughput"] == 47.4)
    assert match.name_command(row).endswith("make llm")
    assert match.name_command(row | cells) == ""


def test_the_best_matmul_is_that_of_this_chip(tmp_path):
    write(tmp_path, [PEAK | {"tflops": 2}, PEAK | {"tflops": 90, "cpu_id": "another"}])
    stored = frames.load(tmp_path, pytest.fail)
    places = stored.lines.loc[~stored.lines["published"]].to_dict("records")
    assert sorted(match_results.find_peak(stored, place) for place in places) == [2, 90]
    assert match_results.find_peak(stored, places[0] | {"cpu_id": "unknown"}) == 0


def test_what_is_planned_is_the_work_that_was_published(published):
    run = read_fixed_run("match", {})
    for name, rows in published.items():
        runs, reasons = match_results.plan(run, rows, "cuda")
        works = set(match.one_of_each_work(rows))
        models = [each for each in runs.values() if each.command != "tflops"]
        assert len(models) <= len(works) - len(reasons), name
        for each in models:
            settings, workload = match_results.make_workload(each, "cuda")
            scope, *_ = settings.scope or ("device",)
            cells = {
                name: "" if cell is None else str(cell) for name, cell in work_cells(settings, workload, scope).items()
            }
            assert work_of({"measured_precision": "", "compile": "", "weight_bits": ""} | cells) in works


@pytest.mark.parametrize(
    ("peak", "memory_gb", "reasons"),
    [
        (100, 80, {"another scope than can be measured"}),
        (100, 4, {"another scope than can be measured", "not enough memory"}),
        (0.07, 80, {"another scope than can be measured", "more than two minutes a process here"}),
    ],
)
def test_what_cannot_be_measured_here_is_left_out_with_its_reason(published, peak, memory_gb, reasons):
    runs, found = match_results.plan(read_fixed_run("match", {}), published["NVIDIA RTX 3090"], "cuda", peak, memory_gb)
    assert set(found) == reasons
    assert runs


def test_results_stand_next_to_published_ones_of_the_same_work(tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "PUBLISHED", tmp_path)
    cited = {"source": "https://x.org/a", "device_name": "Other", "machine": "other", "framework": "tensorflow"}
    write(
        tmp_path,
        [rate(50) | cited, rate(7) | cited | {"batch_size": 64}, rate(9) | cited | {"phase": "forward"}],
        "published",
    )
    write(tmp_path, [rate(100) | GPU, PEAK], "a")
    lines = frames.load(tmp_path, pytest.fail).lines
    own, others = (lines.loc[lines["published"] == which].to_dict("records") for which in (False, True))
    text = "\n".join(match.describe_matches(own, others, ["a part of a step"]))
    assert "2x (1.98 to 2.02), 100 here, 50 there (images/s)" in text
    assert "https://x.org/a" in text
    assert "2 (n = 1)" in text
    assert "left out of 3: 1 a part of a step" in text


def test_a_rate_follows_from_seconds():
    row = {"value": math.nan, "items": 600, "seconds": 6.0, "step_seconds_median": math.nan, "batch_size": "4"}
    assert match.fill_rate(row)["value"] == 100
    assert match.fill_rate(row | {"items": math.nan, "step_seconds_median": 0.5})["value"] == 8
