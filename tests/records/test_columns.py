"""Every column says what it is for, and a row's work is said in one way."""

from bench.host.environment import GLIBC_KEEPS
from bench.records import columns
from bench.records.columns import COLUMNS


def test_every_column_has_a_role_a_kind_and_a_meaning():
    for name, column in COLUMNS.items():
        assert column.role in ("identity", "version", "work", "setup", "result"), name
        assert column.kind in ("text", "number", "positive", "meter"), name
        assert column.meaning, name
        # Work and setup have words, or "" where they are silent on purpose; no other column is said.
        assert (column.words is not None) == (column.role in ("work", "setup")), name


def test_a_rows_work_and_setup_in_words():
    row = {"workload": "image", "framework": "torch", "model": "resnet50", "phase": "training", "scope": "end_to_end"}
    row |= {"precision": "float32", "compile": 1, "memory_format": "channels_last", "batch_size": 16, "image_size": 224}
    row |= {"data": "jpeg", "optimizer": "sgd", "num_workers": 4, "num_threads": 2, "power_source": "battery"}
    row |= {"low_power_mode": 1, "allocator": "MALLOC_ARENA_MAX=2", "matrix_size": None}
    assert columns.describe_work(row) == (
        "resnet50, training, end_to_end, float32, compiled, channels_last, batch 16, 224 px, sgd"
    )
    assert columns.describe_setup(row) == "on battery, in low-power mode, MALLOC_ARENA_MAX=2, 4 workers, 2 threads"


def test_usual_values_are_not_said():
    row = {"workload": "mlp", "model": "mlp-5x1024", "scope": "device", "compile": "0", "image_size": "32"}
    assert columns.describe_work(row | {"data": "synthetic"}) == "mlp-5x1024, synthetic images"
    assert columns.describe_setup({"power_source": "ac", "low_power_mode": 0}) == ""


def test_a_known_allocator_is_said_in_words():
    row = {"allocator": " ".join(f"{name}={value}" for name, value in GLIBC_KEEPS.items())}
    assert columns.describe_setup(row) == columns.describe_change({}, row) == "allocator keeps memory"
    assert columns.describe_setup({"allocator": "LD_PRELOAD=/usr/lib/libjemalloc.so.2"}) == "libjemalloc.so.2"
    assert columns.describe_change(row, {}) == "allocator default"
