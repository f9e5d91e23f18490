"""Each picture draws the right rows; its looks are not tested."""

import os
import re
import subprocess
import sys

import pytest

import plot_results
from bench.plots import pictures
from bench.settings import SettingError
from tests.rows import FAILED, GPU, LLM, MATMUL, MLP, rate, standard_set, write

CITED = {"source": "https://x"}
OURS = GPU | {"batch_size": "64"}
WRONG = [{"image_size": "128"}, {"scope": "end_to_end"}, {"world_size": "2"}, {"compile": "1"}]
WRONG += [{"status": "unsynchronised"}, {"status": "cpu_time"}]
WRONG = [OURS | rate(99) | CITED | each for each in WRONG]
gpu_set, cpu_set = (lambda lines, kind=kind: pictures.draw_works(lines, kind) for kind in ("gpu", "cpu"))


def values_in(axes):
    """The values next to all bars, or those of lines."""
    if texts := [text.get_text() for text in axes.texts]:
        return sorted(float(text.split()[0]) for text in texts if re.fullmatch(r"[\d.]+ \S+/s", text))
    return sorted(value for each in axes.containers for value in each.lines[0].get_ydata())


@pytest.mark.parametrize(
    ("picture", "rows", "values"),
    [
        # Figures of the same work, of two machines at least; timed with the right clock, on one device.
        (gpu_set, [OURS | rate(10), OURS | rate(7) | CITED, *WRONG], [7, 10]),
        (gpu_set, [OURS | rate(5), OURS | rate(9) | {"framework": "jax"}], []),
        (gpu_set, [OURS | rate(5), OURS | rate(6) | CITED | {"device": "cpu"}], []),
        (cpu_set, [rate(5), rate(6) | CITED | {"device_name": "M1"}, LLM | rate(5)], [5, 6]),
        # CIFAR-10 comes before synthetic images; other settings than the ancestors' are left out.
        (pictures.mlp, [rate(8000) | MLP, rate(5000) | MLP | {"data": "cifar10"}], [5000]),
        (pictures.mlp, [rate(5) | MLP, rate(9) | MLP | {"optimizer": "adam"}, rate(9) | MLP | {"compile": "1"}], [5]),
        (pictures.mlp, [rate(5) | MLP, rate(9) | MLP | {"precision": "tf32"}], [5, 9]),
        (pictures.mlp, [rate(9) | MLP | {"framework": "jax", "compile": "1", "precision": "mixed_bfloat16"}], [9]),
    ],
)
def test_the_rows_of_a_picture(folder, load, picture, rows, values):
    write(folder, [row for row in rows if not row.get("source")])
    write(folder, [row for row in rows if row.get("source")], "published")
    figure = picture(load())
    assert (values_in(figure.axes[-1]) if figure else []) == values


def test_each_machine_and_precision_has_a_line_of_matmuls(folder, load):
    sizes = [MATMUL | {"matrix_size": f"{side}x{side}x{side}", "tflops": side / 64} for side in (64, 128, 256)]
    write(folder, [*sizes, *(row | {"precision": "bfloat16", "tflops": 9} for row in sizes)])
    write(folder, [MATMUL | {"machine": "c"}, *(row | GPU | {"tflops": 10 * row["tflops"]} for row in sizes)])
    (axes,) = pictures.tflops(load()).axes
    drawn = [each.lines[0].get_ydata().tolist() for each in axes.containers]
    assert drawn == [pytest.approx(line) for line in ([10, 20, 40], [9, 9, 9], [1, 2, 4], [2.4])]
    assert [each.get_label().split()[-1] for each in axes.containers] == ["256", "64", "256", "64"]


def test_each_machine_has_a_line_then_the_first_benchmark_and_what_is_left_out_is_named(folder, load):
    for i in range(22):
        row = rate(100 + i) | MLP | {"timestamp": f"2026-11-{i + 1:02}"}
        write(folder, [row, row | rate(1) | {"precision": "mixed_bfloat16"}], f"m{i:02}")
    write(folder, [rate(1) | MLP | {"source": "x/M1-tensorflow-benchmark/x", "device_name": "M1"}], "published")
    figure = pictures.mlp(load())
    machines = [f"m{i:02} (CPU), torch" for i in reversed(range(22))]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*machines[:20], "M1, torch, published"]
    assert figure.texts[-1].get_text().startswith(f"not shown: {'; '.join(machines[20:])}; ")
    assert values_in(figure.axes[0]) == pytest.approx(sorted(50_000 / value for value in values_in(figure.axes[1])))


def test_a_disturbed_bar_is_hatched_and_variables_are_other_settings(folder, load):
    busy = {"machine": "b", "flags": "contended", "allocator": "A=1 B=2"}
    write(folder, [OURS | rate(7), OURS | rate(5) | busy])
    (axes,) = gpu_set(load()).axes
    assert [bar.get_hatch() is None for bar in axes.patches] == [True, False]
    assert "disturbed, torch, other settings" in [text.get_text() for text in axes.texts]


def test_a_picture_needs_a_row_of_our_own_and_is_in_the_readme(folder):
    write(folder, [rate(10) | CITED, rate(5) | MLP])
    assert [path.name for path in plot_results.plot(folder, lambda line: None)][:-2] == ["mlp.png"]
    assert "standard_set_cpu" not in (folder / "README.md").read_text()
    write(folder, standard_set())
    *drawn, written, page = plot_results.plot(folder, lambda line: None)
    assert {folder / "plots" / "standard_set_cpu.png", folder / "cards" / "a-torch.png"} <= {*drawn}
    assert "(plots/standard_set_cpu.png)" in written.read_text()
    assert all(path.stat().st_size > 1000 for path in (*drawn, page))


@pytest.mark.parametrize("name", ["README.md", "index.html"])
def test_a_page_that_make_plot_has_not_written_stays(folder, name):
    write(folder, [rate(10), rate(9) | CITED])
    (folder / name).write_text("# My project\n")
    with pytest.raises(SettingError, match=name):
        plot_results.plot(folder, lambda line: None)
    assert (folder / name).read_text() == "# My project\n"
    assert not (folder / "plots").exists()


@pytest.mark.parametrize("rows", [[], [FAILED], [CITED]])
def test_a_folder_without_a_result_is_a_mistake(folder, rows):
    write(folder, rows)
    with pytest.raises(SettingError, match="RESULTS_DIR="):
        plot_results.plot(folder, pytest.fail)
    assert not (folder / "README.md").exists()


def test_a_matplotlibrc_or_a_notebook_changes_no_picture(tmp_path):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    script = "from bench.plots.draw import matplotlib; print(matplotlib.rcParams['text.usetex'])"
    environ = os.environ | {"MATPLOTLIBRC": str(tmp_path), "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    told = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
