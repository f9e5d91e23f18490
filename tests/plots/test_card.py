"""A machine's card: which rows it shows, which published machines are next to it, and what it warns of."""

from bench.plots import card
from tests.rows import rate, standard_set, write

LATER = "2030-11-20T11:34:42+00:00"
OTHERS = {"source": "https://x", "device": "cuda", "batch_size": "16", "phase": "inference"}


def test_published_machines_of_the_same_work_are_next_to_ours(folder, load):
    write(folder, [row | {"flags": "contended"} for row in standard_set()])
    bad = {"compile": "1", "precision": "mixed_float16", "scope": "end_to_end", "image_size": "320", "phase": "forward"}
    bad |= {"status": "unsynchronised", "model": "vgg16"}
    rows = [OTHERS | rate(900) | {name: text, "device_name": f"another {name}"} for name, text in bad.items()]
    write(folder, [*rows, OTHERS | rate(900) | {"device_name": "good"}], "published")
    bars = [row for block in card.make_card(load(), "a", "torch")["blocks"] for row in block]
    names = [row["device_name"] for row in bars]
    assert names[1] == "good"
    assert names.count("Example CPU") == len(names) - 1
    assert [card.describe_bar(row)[1] for row in bars[:2]] == ["disturbed, 99 to 101", ""]  # there is no ratio


def test_the_latest_lines_with_the_settings_of_the_set_are_shown(folder, load):
    write(folder, standard_set())
    about = {"phase": "inference", "timestamp": LATER, "run_id": "x", "processes": 3}
    others = {"batch_size": "64", "compile": "1", "memory_format": "channels_last", "framework": "tensorflow"}
    write(folder, [rate(999) | about | {name: text} for name, text in others.items()])
    write(folder, [rate(150) | about | {"precision": "bfloat16"}])
    first, *_ = card.make_card(load(), "a", "torch")["blocks"]
    shown = [(row["precision"], row["value"], row["processes"]) for row in first]
    assert shown == [("float32", 100, 3), ("bfloat16", 150, 3)]
    assert card.make_card(load(), "a", "tensorflow") is None
