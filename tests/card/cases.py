"""What runs on a card made of software, in a process of its own: test_card.py starts it."""

import pytest
import torch

from tests.card.card import library
from tests.frameworks.conftest import run_in_process, tiny_decoders  # noqa: F401
from tests.frameworks.sessions import Opener

open_session = Opener("torch")
RUNS = [
    ("image", {"PHASE": "inference", "SCOPE": "device", "PRECISION": "bfloat16"}),
    ("image", {"PHASE": "training", "SCOPE": "device", "MEMORY_FORMAT": "channels_last"}),
    ("mlp", {"PHASE": "training,forward,backward,optimizer", "PRECISION": "mixed_float16", "OPTIMIZER": "adam"}),
    ("transformer", {"PHASE": "training", "PRECISION": "mixed_bfloat16"}),
    ("llm", {"PHASE": "prefill,decode", "PRECISION": "bfloat16"}),
    ("llm", {"PHASE": "training", "PRECISION": "mixed_bfloat16", "LORA_RANK": "2"}),
    ("diffusion", {"PHASE": "inference", "PRECISION": "bfloat16"}),
]


@pytest.fixture
def run(run_in_process):  # noqa: F811
    return lambda name="mlp", **settings: run_in_process(name, **{"MAX_SECONDS": "0.1"} | settings)


@pytest.mark.parametrize(("name", "settings"), RUNS)
def test_a_workload_runs(run, name, settings):
    rows = run(name, **settings)
    assert {row["phase"] for row in rows} == set(settings["PHASE"].split(","))
    for row in rows:
        assert (row["status"], row["device"], row["device_name"]) == ("ok", "cuda", "NVIDIA GeForce RTX 4090"), row
        assert "not_finite" not in row["flags"]


def test_the_peak_is_that_of_weights_and_batches(run):
    (row,) = run()
    weights, batches = 4 * int(row["parameters"]), 4 * 8 * (4 * 3072 + 8)
    assert float(row["peak_memory_bytes"]) == pytest.approx(weights + batches, rel=0.1)


@pytest.mark.parametrize("room", [1e5, 5e6])
def test_a_lack_of_memory_is_a_status(run, room):
    """Test with memory for nothing, and for the weights."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.mem_get_info()[1])
    (row,) = run(MODEL="mlp-64", BATCH_SIZE="100", PHASE="training")
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert row["status"] == "out_of_memory"


def test_a_barrier_waits_for_everything():
    session = open_session("mlp", "training")
    session.step()
    assert library.card_pending() > 0
    session.synchronize()
    assert library.card_pending() == 0


def test_copies_and_events_end_when_the_host_waits():
    ours, event = torch.arange(3.0, device="cuda") + 1, torch.cuda.Event()
    got = ours.to("cpu", non_blocking=True)
    event.record()
    assert got.isnan().all()
    assert not event.query()
    torch.cuda.synchronize()
    assert got.tolist() == [1, 2, 3]
    assert event.query()
