"""The data behind the pictures, the page, and that labels do not overlap; not pixels."""

import csv
import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from matplotlib import pyplot as plt

import plot_results
from bench import results, tables
from tests.test_tables import BASE, rate

SPEC = importlib.util.spec_from_file_location("convert", "results/published/convert.py")
convert = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(convert)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results"


def write(folder, rows, machine="a"):
    for row in rows:
        results.append(folder / f"{machine}.csv", BASE | {"machine": machine} | row)


def summary(folder):
    rows = tables.read_rows(sorted(folder.glob("*.csv")))
    return tables.add_peak_fraction(tables.summarize(rows), rows)


def test_the_fastest_settings_of_a_machine_are_drawn(folder):
    write(folder, [rate(10), rate(30) | {"precision": "tf32"}, rate(99) | {"scope": "input"}])
    write(folder, [rate(500) | {"image_size": "32"}])
    write(folder, [rate(20) | {"device": "cuda"}, rate(5)], "b")
    found = plot_results.fastest(summary(folder), workload="image", model="resnet50", phase="training")
    assert [(r["machine"], r["kind"], r["value"]) for r in found.to_dict("records")] == [
        ("a", "cpu", 30),
        ("b", "gpu", 20),
        ("b", "cpu", 5),
    ]
    assert plot_results.name(found.to_dict("records")[0]) == "a (CPU), torch"
    assert plot_results.say_settings(found) == (["training", "batch 16"], ["tf32", "float32", "float32"])


def test_epochs_against_depth_with_seconds_as_published(folder):
    mlp = {"workload": "mlp", "batch_size": "32", "image_size": "32", "data": "cifar10"}
    write(folder, [rate(5000) | mlp | {"model": "mlp-5x1024"}, rate(2500) | mlp | {"model": "mlp-10x1024"}])
    write(folder, [rate(1) | mlp | {"model": "mlp-3000-1000"}])
    timed = {"throughput": "", "throughput_low": "", "throughput_high": "", "seconds": "60", "items": "150000"}
    write(folder, [timed | mlp | {"model": "mlp-5x1024", "source": "https://x"}], "p")
    found = plot_results.depths(summary(folder))
    assert sorted(zip(found["machine"], found["depth"], found["epoch_seconds"], strict=True)) == [
        ("a", 5, 10),
        ("a", 10, 20),
        ("p", 5, 20),
    ]


def test_sizes_speed_ups_and_joules(folder):
    matmul = {"workload": "matmul", "model": "matmul", "phase": "", "unit": "products/s"}
    write(folder, [matmul | {"matrix_size": "64x64x64", "tflops": "1.5"}, matmul | {"matrix_size": "8x64x512"}])
    write(folder, [rate(10), rate(80) | {"device": "cuda", "power_watts": "40"}])
    found = summary(folder)
    assert plot_results.sizes(found)["side"].tolist() == pytest.approx([64, 64])
    assert sorted(plot_results.sizes(found)["value"]) == [1.5, 2.4]
    assert plot_results.speed_ups(found)["speed_up"].tolist() == [8]
    assert plot_results.per_joule(found)["value"].tolist() == [2]


def test_scopes_stand_together_with_their_limit(folder):
    write(folder, [rate(100), rate(40) | {"scope": "input"}])
    assert plot_results.scopes(summary(folder)).empty
    write(folder, [rate(38) | {"scope": "end_to_end", "bottleneck": "input", "data": "jpeg"}])
    (row,) = plot_results.scopes(summary(folder)).to_dict("records")
    assert [row[f"value_{scope}"] for scope in plot_results.SCOPES] == [100, 40, 38]
    assert (row["low_input"], row["bottleneck"]) == (pytest.approx(39.6), "input")
    # A later run of one of them belongs to another hour.
    write(folder, [rate(200) | {"run_id": "later"}])
    assert plot_results.scopes(summary(folder)).empty


def sustained(run, rates, **changes):
    """Rows of ten seconds each."""
    kinds = {"scope": "sustained", "run_id": run, "seconds": "10"}
    return [
        rate(each) | kinds | {"elapsed_seconds": str(10 * i), "items": str(10 * each)} | changes
        for i, each in enumerate(rates, 1)
    ]


def test_a_sustained_run_is_no_line_of_its_own_and_the_latest_counts(folder):
    write(folder, [rate(55), *sustained("old", [1] * 9), *sustained("new", [100, 100, 100, 90, 80, 60, 50, 50, 50])])
    assert summary(folder)["value"].tolist() == [55]
    (run,) = tables.sustained_runs(tables.read_rows([folder / "a.csv"]))
    assert set(run["run_id"]) == {"new"}
    assert tables.burst_and_sustained(run) == (100, 50)
    page = plot_results.plot(folder)[-1].read_text()
    assert "| a | resnet50, training, sustained, float32, batch 16, 224 px | torch 2.15 | 1.5 | 100 images/s |" in page


def test_a_short_sustained_run_has_no_ratio(folder):
    write(folder, sustained("r", [10, 10], power_watts="40", temperature_c="61"))
    (run,) = runs = tables.sustained_runs(tables.read_rows([folder / "a.csv"]))
    cells = plot_results.describe_sustained(run)
    assert cells[4:9] == ["10 images/s", "", "", "40", "61"]
    assert len(plot_results.picture_of_sustained(runs).axes) == 3


def many(folder, count):
    """Machines with a row for every picture."""
    for i in range(count):
        name = f"a-rather-long-machine-name-{i}"
        rows = [rate(10 * 1.3**i) | {"phase": phase, "power_watts": "50"} for phase in ("inference", "training")]
        rows += [rate(9) | {"scope": "input"}, rate(8) | {"scope": "end_to_end", "bottleneck": "input"}]
        rows += [rate(50 * 1.2**i) | {"device": "cuda"}]
        bert = {"workload": "transformer", "model": "bert-large", "image_size": "", "sequence_length": "128"}
        rows += [rate(3 + i) | bert]
        mlp = {"workload": "mlp", "batch_size": "32", "image_size": "32"}
        rows += [rate(9000 / depth + i) | mlp | {"model": f"mlp-{depth}x1024"} for depth in (5, 10)]
        matmul = {"workload": "matmul", "phase": "", "unit": "products/s", "matrix_size": "64x64x64"}
        rows += [rate(1) | matmul | {"model": model, "tflops": str(1 + i)} for model in ("matmul", "matmul-peak")]
        rows += [rate(40 + i) | {"workload": "bandwidth", "model": "copy", "phase": "", "unit": "GB/s", "tflops": ""}]
        rows += sustained(f"run-{i}", [10 + i] * 9)
        write(folder, rows, name)
    return summary(folder)


def bar_names(figure):
    return [text for text in figure.axes[0].texts if text.get_ha() == "right"]


def overlapping(texts, renderer):
    boxes = [text.get_window_extent(renderer) for text in texts if text.get_visible() and text.get_text()]
    return [(a, b) for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]


@pytest.mark.parametrize("count", [3, 30])
def test_labels_do_not_overlap(folder, count):
    found = many(folder, count)
    runs = tables.sustained_runs(tables.read_rows(sorted(folder.glob("*.csv"))))
    for name, draw in plot_results.PICTURES.items():
        figure = draw(runs if name == "sustained" else found)
        assert figure is not None, name
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        for axes in figure.axes:
            assert not overlapping([*axes.get_yticklabels(), *axes.texts], renderer), name
            box = axes.get_tightbbox(renderer)
            assert box.x0 >= 0, name
            assert box.x1 <= figure.bbox.x1, name
        for legend in figure.legends:
            assert not overlapping(legend.get_texts(), renderer), name
        plt.close(figure)


def test_everything_is_drawn_and_the_page_has_the_figures(folder):
    many(folder, 3)
    written = plot_results.plot(folder)
    assert [path.stem for path in written] == [*plot_results.PICTURES, "README"]
    page = written[-1].read_text()
    assert "![images](plots/images.png)" in page
    assert (
        "| a-rather-long-machine-name-0 | resnet50, training, float32, batch 16, 224 px | torch 2.15 | cpu | 10 "
        in page
    )
    assert "[a-rather-long-machine-name-0.csv](a-rather-long-machine-name-0.csv)" in page
    assert "## GPU over CPU" in page


def test_without_own_rows_the_published_ones_are_drawn(folder, monkeypatch):
    folder.mkdir()
    (folder / "published.csv").write_bytes(Path("results/published.csv").read_bytes())
    written = {path.stem for path in plot_results.plot(folder)}
    assert written >= {"images", "transformers", "mlp", "peaks", "bandwidth", "README"}


def test_a_wrong_clock_is_not_drawn_as_speed(folder):
    write(folder, [rate(10) | {"source": "https://x", "status": "unsynchronised"}, rate(5) | {"status": "cpu_time"}])
    assert summary(folder).empty


def test_a_published_speed_up_is_that_of_one_source_and_chip(folder):
    seconds = {"throughput": "", "throughput_low": "", "throughput_high": "", "tflops": "", "source": "https://x"}
    write(folder, [seconds | {"device_name": "Apple M1 (CPU)", "seconds": "0.4"}], "apple-m1-cpu")
    gpu = seconds | {"device": "mps", "device_name": "Apple M1 (GPU)", "seconds": "0.1", "status": "unsynchronised"}
    write(folder, [gpu, gpu | {"device_name": "Apple M2"}, gpu | {"source": "https://y"}], "apple-m1-gpu")
    rows = tables.read_rows(sorted(folder.glob("*.csv")))
    (row,) = plot_results.speed_ups(plot_results.read_cited(rows)).to_dict("records")
    assert (row["speed_up"], row["status"]) == (4, "unsynchronised")
    assert plot_results.describe_speed_up(row)[3:] == [
        *("0.4 s", "0.1 s", "", "", "4", "", "unsynchronised"),
        "[apple-m1-gpu.csv](apple-m1-gpu.csv), [source](https://x)",
    ]


def page_of(folder):
    """The lines of each section of the page, by its title."""
    sections = plot_results.plot(folder)[-1].read_text().split("\n## ")[1:]
    return {title: lines for title, *lines in (section.splitlines() for section in sections)}


def test_every_ancestor_stands_beside_own_rows(folder):
    mlp = {"workload": "mlp", "batch_size": "32", "image_size": "32"}
    own = [rate(2000) | mlp | {"model": "mlp-3000-1000", "loss_mean": "1.5", "accuracy": "0.49"}]
    own += [rate(100) | {"phase": "inference", "batch_size": "1", "step_seconds_median": "0.01"}]
    write(folder, own, "mine")
    (folder / "published.csv").write_bytes(Path("results/published.csv").read_bytes())
    page = page_of(folder)
    for title, *_ in plot_results.ANCESTORS.values():
        assert f"Beside {title}" in page
    header, _, *lines = [line for line in page["Beside How Fast Can M1 Chip Run Tensorflow"] if line.startswith("|")]
    cells = [dict(zip(header.split(" | "), line.split(" | "), strict=True)) for line in lines]
    each = {line["| machine"].removeprefix("| "): line["us an item"] for line in cells}
    assert each == {
        **{"apple-m1-gpu": "293", "apple-m1-cpu": "485", "nvidia-a100-pcie-40gb": "98"},
        **{"intel-core-i9-model-not-stated": "676", "mine": "500"},
    }
    assert (cells[-1]["loss"], cells[-1]["accuracy"]) == ("1.5", "0.49")
    depths = "\n".join(page["Beside M1-tensorflow-benchmark"])
    assert "| mlp-5x1024, training, float32, batch 32 | tensorflow 2.7.0 | cpu | 66.52 s | 22.17 |" in depths
    steps = "\n".join(page["Beside benchmark-pytorch-mps"])
    assert "| 0.05158 s |" in steps
    assert "| mine | resnet50, inference, float32, batch 1, 224 px | torch 2.15 | cpu | 100 images/s |" in steps
    assert "| 247.2 images/s |" in "\n".join(page["Beside apple-silicon-pytorch"])
    assert "| 140 images/s | 21.00 | 42 | 0.3 |" in "\n".join(page["Beside tf-metal-experiments"]).replace(
        " |  |", " |"
    )


def test_a_wrong_clock_is_told_with_its_reason(folder):
    folder.mkdir()
    (folder / "published.csv").write_bytes(Path("results/published.csv").read_bytes())
    told = page_of(folder)["Published with a wrong clock"]
    assert sum("| unsynchronised |" in line or "| cpu_time |" in line for line in told) == 13
    assert any("| 0.079660 seconds | unsynchronised | seconds per iteration" in line for line in told)


def test_a_page_has_an_end(folder, monkeypatch):
    monkeypatch.setattr(plot_results, "MAX_TABLE", 3)
    write(folder, [rate(10 + i) | {"batch_size": str(i)} for i in range(5)])
    write(folder, [rate(10)], "b")
    images = page_of(folder)["Image networks"]
    assert sum(line.startswith("| ") for line in images) == 2 + 3
    assert sum(line.startswith("| b ") for line in images) == 1
    assert images[-1].startswith("3 more lines are not on this page")


def test_published_rows_are_what_the_sources_say():
    with open("results/published/results.csv", newline="") as lines:
        published = list(csv.DictReader(lines))
    stored = results.read("results/published.csv")
    assert len(stored) == len(published) == 200
    for source, row in zip(published, stored, strict=True):
        assert row["source"] == source["source"]
        assert row["note"].startswith(f"published as {source['value']} {source['unit']}")
        if source["unit"] in ("seconds", "minutes", "us/sample"):
            assert row["throughput"] == ""
        else:
            assert float(row["throughput"] or row["tflops"]) == pytest.approx(float(source["value"]), rel=1e-5)
    assert {row["status"] for row in stored} == {"ok", "cpu_time", "unsynchronised"}


def test_the_stored_conversion_is_the_scripts(tmp_path, monkeypatch):
    with open("results/published/results.csv", newline="") as lines:
        rows = [convert.convert(published) for published in csv.DictReader(lines)]
    for row in rows:
        results.append(tmp_path / "again.csv", row)
    assert results.read(tmp_path / "again.csv") == results.read("results/published.csv")


def test_no_framework_is_needed():
    program = "import sys, plot_results, compare_results; print({'torch', 'tensorflow', 'keras'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_repetitions_are_one_line_however_many(folder):
    write(folder, [rate(10 + i) for i in range(3)])
    path = folder / "a.csv"
    header, *lines = path.read_text().splitlines(keepends=True)
    path.write_text(header + "".join(lines) * 5000)
    assert summary(folder)["rows"].tolist() == [15_000]


def test_more_bars_than_can_be_read_are_counted(folder):
    write(folder, [rate(10)])
    path = folder / "a.csv"
    header, line = path.read_text().splitlines(keepends=True)
    path.write_text(header + "".join(line.replace(",a,", f",m{i},", 1) for i in range(100)))
    figure = plot_results.picture_of_images(summary(folder))
    assert figure.axes[0].get_title(loc="left") == (
        "resnet50, 224 x 224 pixels, training, float32, batch 16 (32 of 100)"
    )
    assert len(bar_names(figure)) == plot_results.MAX_IN_PANEL
    plt.close(figure)


def test_a_picture_has_room_for_all_of_a_panel_unless_the_others_need_it():
    panels = [pd.DataFrame({"machine": range(n), "published": False}) for n in (10, 30, 40)]
    assert [len(each) for each in plot_results.share_out(panels[:2])] == [10, 30]
    assert [len(each) for each in plot_results.share_out(panels)] == [10, 27, 27]
    assert [len(each) for each in plot_results.share_out(panels[2:])] == [plot_results.MAX_IN_PANEL]
