"""The data behind the pictures, the page, and that labels do not overlap; not pixels."""

import csv
import itertools
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from matplotlib import pyplot as plt

import plot_results
from bench.rows import results, tables
from tests.rows.test_tables import BASE, rate


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


def test_depths_are_those_of_the_ancestors_settings(folder):
    mlp = {"workload": "mlp", "batch_size": "32", "model": "mlp-5x1024", "data": "synthetic"}
    others = [{"batch_size": "64"}, {"precision": "bfloat16"}, {"optimizer": "adam"}, {"scope": "end_to_end"}]
    write(folder, [rate(9000) | mlp | {"phase": "inference"}, *(rate(9000) | mlp | other for other in others)])
    assert plot_results.depths(summary(folder)).empty
    write(folder, [rate(8000) | mlp, rate(5000) | mlp | {"data": "cifar10"}])
    assert plot_results.depths(summary(folder))["images_per_second"].tolist() == [5000]


def test_a_published_figure_of_the_same_name_hides_no_own_one(folder):
    matmul = {"workload": "matmul", "model": "matmul-peak", "phase": "", "matrix_size": "64x64x64", "device": "cuda"}
    write(folder, [rate(200), rate(269) | {"source": "https://x"}, matmul | {"tflops": "700"}])
    write(folder, [matmul | {"tflops": "790", "model": "matmul-best", "source": "https://x"}])
    found = summary(folder)
    drawn = plot_results.fastest(found, workload="image", model="resnet50", phase="training")
    assert drawn[["value", "published"]].to_numpy().tolist() == [[269, True], [200, False]]
    assert sorted(plot_results.matrix_peaks(found)["value"]) == [700, 790]


def test_only_resident_batches_of_the_usual_size_are_set_side_by_side(folder):
    bert = {"workload": "transformer", "model": "bert-base", "image_size": ""}
    write(folder, [rate(10), rate(99) | {"scope": "end_to_end"}, rate(98) | {"image_size": "128"}])
    write(folder, [rate(20) | bert | {"sequence_length": "128"}, rate(97) | bert | {"sequence_length": "384"}])
    assert sorted(plot_results.resident(summary(folder))["value"]) == [10, 20]


def test_a_speed_ups_interval_has_the_worst_of_both(folder):
    write(folder, [rate(10, width=0.1), rate(80, width=0.5) | {"device": "cuda"}])
    (row,) = plot_results.speed_ups(summary(folder)).to_dict("records")
    assert (row["speed_up"], row["low"], row["high"]) == (8, pytest.approx(40 / 11), pytest.approx(120 / 9))


def test_sizes_speed_ups_and_joules(folder):
    matmul = {"workload": "matmul", "model": "matmul", "phase": "", "unit": "products/s"}
    write(folder, [matmul | {"matrix_size": "64x64x64", "tflops": "1.5"}, matmul | {"matrix_size": "8x64x512"}])
    write(folder, [rate(10), rate(80) | {"device": "cuda", "power_watts": "40"}])
    found = summary(folder)
    assert plot_results.sizes(found)["side"].tolist() == pytest.approx([64, 64])
    assert sorted(plot_results.sizes(found)["value"]) == [1.5, 2.4]
    assert plot_results.speed_ups(found)["speed_up"].tolist() == [8]
    assert plot_results.per_joule(found)["value"].tolist() == [2]


def test_of_several_setups_equal_ones_make_a_speed_up(folder):
    cpu = [rate(80) | {"num_threads": "8"}, rate(10) | {"num_threads": "1"}]
    write(folder, [*cpu, rate(160) | {"device": "cuda", "num_threads": "8"}])
    (row,) = plot_results.speed_ups(summary(folder)).to_dict("records")
    assert row["speed_up"] == 2
    assert plot_results.describe_speed_up(row)[3] == "80 images/s (threads: 8)"
    write(folder, [*cpu, rate(160) | {"device": "cuda", "num_threads": "4"}], "b")
    assert plot_results.speed_ups(summary(folder))["speed_up"].tolist() == [2, 2]  # else the fastest


def test_of_several_setups_the_fastest_is_a_point_of_a_line(folder):
    matmul = {"workload": "matmul", "model": "matmul", "phase": "", "matrix_size": "64x64x64"}
    write(folder, [matmul | {"tflops": t, "num_threads": n} for n, t in (("1", "1"), ("2", "2"), ("4", "1.5"))])
    assert plot_results.sizes(summary(folder))["value"].tolist() == [2]


def test_setups_are_told_apart_in_a_picture(folder):
    write(folder, [rate(10) | {"num_threads": "1"}, rate(20) | {"num_threads": "2"}])
    assert plot_results.say_settings(summary(folder))[1] == ["threads: 1", "threads: 2"]


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


def test_a_later_run_of_the_model_alone_hides_no_pipeline(folder):
    three = [rate(100), rate(40) | {"scope": "input"}, rate(38) | {"scope": "end_to_end", "bottleneck": "input"}]
    write(folder, [row | {"run_id": "three"} for row in three])
    write(folder, [rate(200) | {"run_id": "later", "commit": "later"}])
    rows = plot_results.of_pipelines(tables.read_rows([folder / "a.csv"]))
    assert plot_results.scopes(tables.summarize(rows))["value_device"].tolist() == [100]


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


def points(axes):
    """[(colour, face, [(value, low, high)])] of the points with intervals in an axes, bars apart."""
    found = []
    for container in axes.containers:
        line, _, (ends,) = container.lines
        spans = [tuple(each) for each in ends.get_segments()]
        along = 0 if container.has_xerr else 1
        values = line.get_xydata()[:, along]
        found.append(
            (
                line.get_color(),
                line.get_markerfacecolor(),
                [(value, *(point[along] for point in span)) for value, span in zip(values, spans, strict=True)],
            )
        )
    return found


def test_own_marks_are_filled_and_published_ones_hollow_each_with_its_interval(folder):
    write(folder, [rate(1000, width=0.1), rate(10) | {"source": "https://x"}])
    figure = plot_results.picture_of_images(summary(folder))
    own, published = points(figure.axes[0])
    assert own == (plot_results.OWN, plot_results.OWN, [(1000, pytest.approx(900), pytest.approx(1100))])
    assert published[:2] == (plot_results.PUBLISHED, "white")
    plt.close(figure)


def test_the_part_that_limits_is_marked(folder):
    write(folder, [rate(100), rate(40) | {"scope": "input"}, rate(38) | {"scope": "end_to_end", "bottleneck": "input"}])
    figure = plot_results.picture_of_scopes(summary(folder))
    assert [text.get_text() for text in figure.axes[0].texts] == ["100", "40 limits", "38"]
    plt.close(figure)


def test_seconds_an_epoch_have_the_interval_of_their_rate(folder):
    write(folder, [rate(5000, width=0.5) | {"workload": "mlp", "batch_size": "32", "model": "mlp-5x1024"}])
    figure = plot_results.picture_of_depths(summary(folder))
    (*_, ends), *_ = points(figure.axes[0])
    assert ends == [(10, pytest.approx(50_000 / 7500), 20)]
    plt.close(figure)


def test_the_best_size_has_the_ring(folder):
    matmul = {"workload": "matmul", "model": "matmul", "phase": ""}
    sides = {64: 1, 128: 5, 256: 3}
    write(folder, [matmul | {"matrix_size": f"{m}x{m}x{m}", "tflops": str(t)} for m, t in sides.items()])
    figure = plot_results.picture_of_sizes(summary(folder))
    (ring,) = [line for line in figure.axes[0].lines if line.get_markersize() > 10]
    assert ring.get_xydata().tolist() == [pytest.approx([128, 5])]
    assert figure.legends[0].get_texts()[0].get_text() == "a (CPU), torch, float32: best at M = 128"
    plt.close(figure)


def test_every_size_has_an_axis_with_figures(folder):
    matmul = {"workload": "matmul", "model": "matmul", "phase": ""}
    write(folder, [matmul | {"matrix_size": f"{m}x{m}x{m}", "tflops": "12"} for m in (6000, 7000, 7900)])
    figure = plot_results.picture_of_sizes(summary(folder))
    figure.canvas.draw()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        low, high = axis.get_view_interval()
        assert sum(low <= each <= high for each in axis.get_majorticklocs()) >= 2
    plt.close(figure)


def test_a_panel_for_each_operator(folder):
    stream = {"workload": "bandwidth", "phase": "", "unit": "GB/s"}
    write(folder, [rate(40) | stream | {"model": model} for model in ("copy", "add", "multiply-add")])
    figure = plot_results.picture_of_bandwidth(summary(folder))
    assert [axes.get_title(loc="left").split(",")[0] for axes in figure.axes] == ["copy", "add", "multiply-add"]
    plt.close(figure)


def test_a_sustained_run_is_drawn_by_the_rate_of_each_ten_seconds(folder):
    rows = sustained("r", [60] * 9)
    write(folder, [row | {"items": "550"} for row in rows])
    figure = plot_results.picture_of_sustained(tables.sustained_runs(tables.read_rows([folder / "a.csv"])))
    (line,) = figure.axes[0].lines
    assert line.get_xdata().tolist() == pytest.approx([(10 * i - 5) / 60 for i in range(1, 10)])
    assert line.get_ydata().tolist() == [55] * 9
    plt.close(figure)


def test_of_many_panels_those_with_own_rows_are_drawn(folder):
    power = {"power_watts": "10"}
    write(folder, [rate(1) | power | {"model": f"theirs-{i}", "source": "https://x"} for i in range(7)])
    write(folder, [rate(1) | power | {"model": "yours"}])
    figure = plot_results.picture_of_joules(summary(folder))
    titles = [axes.get_title(loc="left").split(",")[0] for axes in figure.axes]
    assert titles == [*(f"theirs-{i}" for i in range(5)), "yours"]
    assert "2 more" in figure.axes[-1].get_xlabel()
    plt.close(figure)


def test_what_is_implausible_is_in_the_tables_and_in_no_picture(folder):
    write(folder, [rate(10), rate(99999) | {"flags": "implausible", "batch_size": "1"}])
    page = plot_results.plot(folder)[-1].read_text()
    assert "99999" in page.replace("100000", "99999")
    assert (folder / "plots" / "images.png").exists()
    write(folder, [rate(88888) | {"flags": "implausible"}])
    plot_results.plot(folder)
    assert not (folder / "plots" / "images.png").exists()
    matmul = {"workload": "matmul", "model": "matmul", "phase": "", "matrix_size": "64x64x64"}
    write(folder, [matmul | {"tflops": "900", "flags": "implausible"}])
    assert plot_results.draw_tflops(folder) is None


def test_work_of_another_program_version_has_a_table(folder):
    write(folder, [rate(10) | {"workload": "audio", "model": "whisper"}])
    assert any("| whisper, training" in line for line in page_of(folder)["audio"])


def test_a_file_with_a_blank_in_its_name_can_be_followed(folder):
    write(folder, [rate(10)], "a b (1)")
    assert "[a b (1).csv](a%20b%20%281%29.csv)" in plot_results.plot(folder)[-1].read_text()


@pytest.mark.parametrize("name", ["nvidia-rtx-6000-" * 6, "cost$of$\\foo$", "_under_score_"])
def test_any_name_can_be_drawn(folder, name):
    many_words = {"precision": "mixed_bfloat16", "compile": "1", "memory_format": "channels_last", "machine": name}
    matmul = {"workload": "matmul", "model": "matmul", "phase": "", "matrix_size": "64x64x64", "machine": name}
    few_words = {"framework": "tensorflow", "batch_size": "4", "machine": name}
    write(folder, [rate(10) | many_words, rate(9) | few_words, matmul, matmul | {"precision": "float16"}])
    for draw in (plot_results.picture_of_images, plot_results.picture_of_sizes):
        figure = draw(summary(folder))
        figure.canvas.draw()
        for part in (*figure.axes, *figure.legends):
            box = part.get_tightbbox(figure.canvas.get_renderer())
            assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        plt.close(figure)


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
    assert (
        "| mlp-5x1024, training, float32, batch 32 | tensorflow 2.7.0 | cpu | 66.52 s for 150,000 items | 22.17 |"
        in depths
    )
    steps = "\n".join(page["Beside benchmark-pytorch-mps"])
    assert "| 0.05158 s a step |" in steps
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
