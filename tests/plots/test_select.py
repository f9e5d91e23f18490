"""Which lines a picture or a table shows; the tests look at frames, not at pixels."""

import pytest

from bench.plots import select
from tests.records.examples import MATMUL, rate, write

PEAK = MATMUL | {"model": "matmul-peak", "device": "cuda"}
MLP = {"workload": "mlp", "batch_size": "32", "model": "mlp-5x1024", "image_size": "32", "data": "cifar10"}
LLM = {"workload": "llm", "model": "qwen3-4b", "batch_size": "1", "image_size": "", "unit": "tokens/s"}
DECODE = LLM | {"phase": "decode", "new_tokens": "128", "depth": "0"}
PREFILL = LLM | {"phase": "prefill", "prompt_tokens": "512"}
TUNED = LLM | {"phase": "training", "sequence_length": "128"}
CITED = {"source": "https://x"}


def test_the_fastest_settings_of_a_machine_are_drawn(folder, load):
    write(folder, [rate(10), rate(30) | {"precision": "tf32"}, rate(99) | {"scope": "input"}])
    write(folder, [rate(500) | {"image_size": "32"}])
    write(folder, [rate(20) | {"device": "cuda"}, rate(5)], "b")
    found = select.best(select.resident(load().believed))
    lines = found[["machine", "kind", "value"]].to_numpy().tolist()
    assert lines == [["a", "cpu", 30], ["b", "gpu", 20], ["b", "cpu", 5]]


def test_epochs_over_depth_with_seconds_as_published(folder, load):
    write(folder, [rate(5000, 0.5) | MLP, rate(2500) | MLP | {"model": "mlp-10x1024"}])
    timed = {"throughput": "", "throughput_low": "", "throughput_high": "", "seconds": "60", "items": "150000"}
    write(folder, [timed | MLP | CITED], "p")
    found = select.depths(load().believed)
    lines = sorted(found[["machine", "depth", "seconds_an_epoch"]].to_numpy().tolist())
    assert lines == [["a", 5, 10], ["a", 10, 20], ["p", 5, 20]]
    own = found[(found["machine"] == "a") & (found["depth"] == 5)].iloc[0]
    assert (own["seconds_an_epoch_low"], own["seconds_an_epoch_high"]) == pytest.approx((50_000 / 7500, 20))


@pytest.mark.parametrize(
    ("select_lines", "rows", "values"),
    [
        # CIFAR-10 comes before synthetic images; other settings than the ancestors' are left out.
        (select.depths, [rate(8000) | MLP | {"data": "synthetic"}, rate(5000) | MLP], [5000]),
        (select.depths, [rate(9000) | MLP | {"model": "mlp-3000-1000"}], []),
        (select.depths, [rate(9000) | MLP | {"optimizer": "adam"}, rate(9000) | MLP | {"compile": "1"}], []),
        # Only resident batches of the usual size are compared.
        (select.resident, [rate(10), rate(99) | {"scope": "end_to_end"}, rate(98) | {"image_size": "128"}], [10]),
        # Quantised weights and larger batches are other work; so are prompts and depths of another length.
        (select.generation, [rate(5) | DECODE, rate(99) | DECODE | CITED | {"precision": "4-bit"}], [5]),
        (select.generation, [rate(9) | DECODE, rate(20) | DECODE | {"batch_size": "4"}], [9]),
        (select.generation, [rate(9) | DECODE, rate(8) | DECODE | {"depth": "512"}, rate(5) | PREFILL], [5, 8, 9]),
        (select.training_of_llm, [rate(9) | TUNED, rate(5) | TUNED | {"batch_size": "4"}, rate(3) | DECODE], [9]),
        (select.training_of_llm, [rate(9) | TUNED | {"lora_rank": "0"}, rate(7) | TUNED | {"lora_rank": "8"}], [7, 9]),
        # Of several setups, the fastest is a point of a line.
        (select.sizes, [MATMUL | {"tflops": each, "num_threads": each} for each in ("1", "2")], [2]),
        (select.sizes, [MATMUL | {"tflops": "1.5"}, MATMUL | {"matrix_size": "8x64x512"}], [1.5, 2.4]),
        # A published figure of the same name hides no own one.
        (
            select.matmul_peaks,
            [PEAK | {"tflops": "700"}, PEAK | {"tflops": "790", "model": "matmul-best"} | CITED],
            [700, 790],
        ),
    ],
)
def test_the_lines_of_a_picture(folder, load, select_lines, rows, values):
    write(folder, rows)
    assert sorted(select_lines(load().believed)["value"]) == values


def test_the_three_scopes_of_the_same_work_are_together(folder, load):
    whole = rate(38) | {"scope": "end_to_end", "data": "jpeg", "num_workers": "2"}
    write(folder, [rate(100), rate(40) | {"scope": "input", "data": "jpeg"}, whole | {"batch_size": "4"}])
    assert select.scopes(load().believed) == []
    write(folder, [whole])
    (parts,) = select.scopes(load().believed)
    assert {scope: line["value"] for scope, line in parts.items()} == {"device": 100, "input": 40, "end_to_end": 38}


def test_a_sustained_run_is_not_a_line_and_the_latest_counts(folder, load):
    row = {"scope": "sustained", "items": "9", "seconds": "10"}
    for run in ("old", "new"):
        write(folder, [rate(1) | row | {"run_id": run, "elapsed_seconds": f"{10 * i}"} for i in (2, 1)])
    write(folder, [rate(55)])
    stored = load()
    assert stored.believed["value"].tolist() == [55]
    (run,) = select.sustained_runs(stored.rows)
    assert run[["run_id", "elapsed_seconds", "rate"]].to_numpy().tolist() == [["new", 10, 0.9], ["new", 20, 0.9]]


def test_the_path_of_the_latest_search_is_in_the_order_of_the_file(folder, load):
    path = [{}, {"precision": "bfloat16"}, {"precision": "bfloat16", "compile": "1"}]
    write(folder, [rate(5) | {"search": "old"}])
    write(folder, [rate(50 - i) | {"search": "new", "timestamp": str(9 - i)} | change for i, change in enumerate(path)])
    write(folder, [rate(7) | {"search": "other", "model": "vgg16"}, rate(9)])
    paths = [path["value"].tolist() for path in select.searches(load().rows)]
    assert paths == [[50, 49, 48], [7]]


def test_a_wrong_clock_is_not_drawn_as_speed(folder, load):
    write(folder, [rate(10) | CITED | {"status": "unsynchronised"}, rate(5) | CITED | {"status": "cpu_time"}])
    assert load().believed.empty


def test_rows_of_different_methods_are_not_scaling(folder, load):
    rows = [rate(80) | {"method_version": "1"}, rate(150) | {"world_size": "2", "method_version": "2"}]
    write(folder, rows)
    assert select.scaling(load().many).empty
    write(folder, [rows[0] | {"method_version": "2"}])
    assert select.scaling(load().many)["devices"].tolist() == [1, 2]
