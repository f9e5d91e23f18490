"""Several ranks: they train alike, and the end of one ends the others with one row."""

import os
import subprocess
import sys

import pytest

from bench import child, parent
from bench.host import ranks
from bench.records import results
from bench.timing import MeasurementError
from image_benchmark import image_workload

TORCHRUN = {
    **{"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "a", "MASTER_PORT": "29400"},
}
SMALL = {"MODEL": "mlp-16", "DATA": "synthetic", "MAX_SECONDS": "0.1", "MACHINE": "m", "USE_GPU": "0", "RUNS": "1"}


def test_torchrun_says_which_rank_this_is():
    me = ranks.read_ranks(TORCHRUN | {"RANK": "3"})
    assert (me.rank, me.world_size, me.local_rank, me.nodes, me.are_many) == (3, 4, 1, 2, True)
    assert (me.share(7), me.share(1)) == (3, 1)
    assert not ranks.read_ranks({"WORLD_SIZE": "4"}).are_many  # another program's variable


@pytest.mark.parametrize(
    ("command", "environ", "named"),
    [
        ("image", {"LOCAL_RANK": ""}, "LOCAL_RANK=''"),  # torchrun did not start it
        ("tflops", {}, "are torchrun's, and `make tflops`"),
        ("image", {"FRAMEWORK": "jax"}, "are torchrun's, and `make image`"),
        ("image", {"FRAMEWORK": "jax", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, "are torchrun's, and `make image`"),
    ],
)
def test_what_is_no_rank_and_what_has_no_ranks_is_refused(monkeypatch, capsys, command, environ, named):
    for name, value in (TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0"} | environ).items():
        monkeypatch.setenv(name, value)
    assert parent.main(command, image_workload) == 2
    assert named in capsys.readouterr().err


def test_ranks_must_have_the_same_weights_after_training():
    child.check_equal_weights([(1.0, 2.0), (1.0, 2.0)])
    with pytest.raises(MeasurementError, match=r"\[1\]") as error:
        child.check_equal_weights([(1.0, 2.0), (1.0, 2.0000001)])
    assert error.value.status == "wrong_output"


# mlp_benchmark.py with rank 1 out of memory before a backward pass of PHASE=backward.
SCRIPT = """
import os, sys
sys.path.insert(0, os.getcwd())
from bench import parent
from bench.frameworks import session
from mlp_benchmark import mlp_workload

def fail(self):
    raise MemoryError("unable to allocate 9 TiB")

if os.environ.get("RANK") == "1":
    session.Backward.prepare = fail
parent.SCRIPTS["mlp"] = os.path.abspath(__file__)
sys.exit(parent.main("mlp", mlp_workload))
"""


def test_the_failure_of_one_of_two_ranks_ends_both(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = (
        os.environ | SMALL | {"RESULTS_DIR": str(tmp_path), "NUM_DEVICES": "2", "PHASE": "training,forward,backward"}
    )
    done = subprocess.run([sys.executable, script], env=environ, text=True, capture_output=True, timeout=300)
    out, rows = done.stdout + done.stderr, results.read(tmp_path / "m.csv")
    assert [row["phase"] for row in rows] == ["training", "forward", "backward"], out
    assert [row["status"] for row in rows[:2]] == ["ok", "ok"]
    assert {(row["world_size"], row["nodes"], row["batch_size"]) for row in rows} == {("2", "1", "32")}
    steps = int(rows[0]["windows"]) * int(rows[0]["steps_per_window"])
    assert int(rows[0]["items"]) == 2 * 32 * steps
    assert rows[2]["status"] in ("failed", "crashed")  # rank 0 notices it, or is ended before it does
    assert "rank 1: out_of_memory: unable to allocate 9 TiB" in out
