"""Run the commands of the README on cards made of software (tests/card): half an hour on two CPU cores.

    python -m checks.card              all of them
    python -m checks.card exclusive    those whose machine or command contains this word

Prints what each command prints, and whether its exit status is the expected one. The rows are of no machine: they go
to a scratch folder, which is named at the end.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.card import machines

TINY = "RUNS=1 MAX_SECONDS=0.2 BATCH_SIZE=2"
MLP = f"{TINY} DATA=synthetic MODEL=mlp-64 make mlp"
LONG = "RUNS=3 MAX_SECONDS=5 BATCH_SIZE=64 DATA=synthetic MODEL=mlp-64 make mlp"
ALL = "PRECISION=float32,float16,bfloat16,mixed_float16,mixed_bfloat16"
COMMANDS = [  # (machine, command, expected exit status)
    *((machine, "make doctor", 0) for machine in machines.MACHINES),
    ("rtx 4090", f"{ALL} MODEL=resnet18 IMAGE_SIZE=32 PHASE=training SCOPE=device {TINY} make image", 0),
    ("rtx 4090", f"{ALL} PHASE=inference,training {MLP}", 0),
    ("rtx 4090", f"EPOCHS=1 PHASE=training {MLP}", 0),
    ("rtx 4090", f"{ALL} PHASE=training SEQUENCE_LENGTH=8 MODEL=distilbert {TINY} make transformer", 0),
    ("rtx 4090", f"PHASE=prefill,decode WEIGHT_BITS=8,4 PRECISION=bfloat16 PROMPT_TOKENS=8 {TINY} make llm", 0),
    ("rtx 4090", f"SIZES=128 {TINY} make tflops", 0),
    ("rtx 4090", "MODEL=mlp-64 DATA=synthetic make best", 0),
    ("rtx 4090", "QUICK=1 make all", 0),
    ("two kinds", f"CUDA_VISIBLE_DEVICES=1 {MLP}", 0),
    ("exclusive", f"PRECISION=float32,mixed_float16 {MLP}", 0),
    ("pair", f"NUM_DEVICES=1,2 PHASE=training {MLP}", 0),
    ("rtx 4090", f"{LONG} # is lost", 0),
    ("rtx 4090", f"{LONG} # Ctrl-C", 130),
]


def run(folder, machine, command):
    """Run a command on a machine and return its exit status; the card is lost, or Ctrl-C is pressed, after 20 s."""
    environ = machines.environ(folder, machine) | {"PYTHON": sys.executable, "USE_GPU": "1"}
    started = subprocess.Popen(["env", *command.partition(" #")[0].split()], env=environ, start_new_session=True)
    if "#" in command:
        time.sleep(20)
        if "lost" in command:
            Path(folder, "lost").touch()
        else:
            os.killpg(started.pid, signal.SIGINT)
    status = started.wait()
    Path(folder, "lost").unlink(missing_ok=True)
    return status


def main(words):
    """Run the commands that have one of these words, or all; returns how many had another exit status."""
    folder = tempfile.mkdtemp()
    wrong = []
    for machine, command, expected in COMMANDS:
        if not words or any(word in f"{machine} {command}" for word in words):
            print(f"\n== {machine}: {command}", flush=True)
            status = run(folder, machine, command)
            wrong += [] if status == expected else [f"{machine}: {command}: exit status {status}, not {expected}"]
    print(f"\nrows in {folder}/results", *wrong or ["all as expected"], sep="\n")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
