"""A machine's card: which published machines are next to it, what it doubts, and that no words overlap."""

import itertools

import pytest

from bench.plots import card, select
from bench.workloads.standard_set import STANDARD_SET
from tests.records.examples import rate, write

IMAGE = STANDARD_SET[0]
OTHERS = {"source": "https://x", "device": "cuda", "batch_size": "64", "phase": "inference"}


def own_rows(**changes):
    """Rows of the whole set in float32."""
    for i, work in enumerate(work for work in STANDARD_SET if "float32" in work.numbers):
        about = {"workload": work.script, "model": work.model, "phase": work.phase, "batch_size": str(work.batch_size)}
        row = rate(100 + i) | about | {"method_version": "2", "cpu_name": "a chip", "cpu_count": "2", "commit": "c"}
        yield row | {"image_size": "", "precision": "float32", "process_rates": "1 2 3", "run_id": str(i)} | changes


def make(folder, machine="a", framework="torch"):
    return card.make_card(select.load(folder, pytest.fail), machine, framework)


def test_published_machines_are_those_of_comparable_work(folder):
    write(folder, own_rows())
    bad = {"compile": "1", "precision": "mixed_float16", "scope": "end_to_end", "image_size": "320", "phase": "forward"}
    bad |= {"status": "unsynchronised", "model": "vgg16"}
    rows = [OTHERS | rate(900) | {name: text, "device_name": f"another {name}"} for name, text in bad.items()]
    write(folder, [*rows, OTHERS | rate(900) | {"device_name": "good"}], "published")
    lines = [line["device_name"] for bars in make(folder).blocks.values() for line in bars]
    assert [name for name in lines if name] == ["good"]
    assert lines[:2] == ["", "good"]


def test_a_card_has_the_published_machines_that_compare_with_most_of_it(folder):
    write(folder, own_rows())
    for name, places in {"gpu 0": [0], "gpu 4": [4], "gpu 5": [5], "both": [0, 2]}.items():
        for work in (STANDARD_SET[i] for i in places):
            about = {"device_name": name, "workload": work.script, "model": work.model, "phase": work.phase}
            write(folder, [OTHERS | about], "published")
    shown = {line["device_name"] for bars in make(folder).blocks.values() for line in bars if line["published"]}
    assert "both" in shown
    assert len(shown) == card.MOST_PUBLISHED


def test_peaks_are_those_of_the_same_chip(folder):
    peak = rate(1) | {"workload": "matmul", "model": "matmul-peak", "phase": "", "precision": "float32"}
    here, elsewhere = {"cpu_id": "x", "tflops": "0.2"}, {"cpu_id": "y", "tflops": "0.5", "matrix_size": "8x8x8"}
    write(folder, [*own_rows(tflops="0.1", cpu_id="x"), peak | here, peak | elsewhere])
    made = make(folder)
    assert [rate for rate, _ in made.tiles] == ["0.2 TFLOP/s"]
    assert {line["of_peak"] for bars in made.blocks.values() for line in bars if line["phase"] != "decode"} == {0.5}


def test_the_latest_lines_with_the_settings_of_the_set_are_shown(folder):
    write(folder, own_rows())
    about = {"phase": "inference", "timestamp": "2030", "run_id": "x"}
    others = {"batch_size": "64", "compile": "1", "memory_format": "channels_last", "framework": "tensorflow"}
    write(folder, [rate(999) | about | {name: text} for name, text in others.items()])
    write(folder, [rate(150) | about | {"precision": "bfloat16"}])
    lines = next(iter(make(folder).blocks.values()))
    shown = [(line["numbers"], line["value"], line["processes"]) for line in lines]
    assert shown == [("float32", 100, 3), ("bfloat16", 150, 1)]
    assert make(folder, framework="tensorflow") is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"commit": "c-dirty"}, "dirty"),
        ({"flags": "contended"}, "other programs"),
        ({"process_rates": "1"}, "too narrow"),
        ({}, None),
    ],
)
def test_doubts_are_in_words(folder, changes, word):
    write(folder, own_rows(**changes))
    doubts = " ".join(make(folder).doubts)
    assert (word in doubts) if word else not doubts


def test_long_names_overlap_nothing_and_stay_on_the_card(folder):
    """The card is drawn, stored and named."""
    long = "A rather long name of a graphics card, Workstation Edition, with Max-Q"
    write(folder, own_rows(cpu_name=long, device_name=long, flags="contended slowed", os=long))
    others = [OTHERS | rate(9e6) | {"device_name": long, "precision": name} for name in ("float32", "tf32")]
    write(folder, others, "published")
    peak = {"workload": "matmul", "model": "matmul-peak", "matrix_size": "1x1x1", "tflops": "0.000123456"}
    write(folder, [peak, {"workload": "bandwidth", "model": "copy", "unit": "GB/s"}])
    assert "a-torch.png" in card.finish(folder, "a", "torch")[-1]
    assert (folder / "cards" / "a-torch.png").stat().st_size
    figure = card.draw_card(make(folder)._replace(limits=[f"{long}, " * 9]))
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(min(box.x0, box.y0) > 0 and box.x1 < figure.bbox.x1 and box.y1 < figure.bbox.y1 for box in boxes)
