"""Run most commands of the README on cards made of software (tests/card): 20 to 40 minutes on two CPU cores.

    python -m checks.card              all of them
    python -m checks.card exclusive    those whose machine or command contains this word

Prints what each command prints, then those with an unexpected exit status. The rows are of no machine: they go to a
scratch folder, which is named at the end.
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
# Kernels do nothing then, so nothing is compared. Without SHAPE_PADDING=0 the compiler times matmuls of cuBLAS, without
# SIZE_ASSERTS=0 it refuses the strides of the CPU's convolutions.
COMPILED = f"CARD_COMPILES=1 TORCHINDUCTOR_SHAPE_PADDING=0 TORCHINDUCTOR_SIZE_ASSERTS=0 PRECISION=bfloat16 {TINY}"
LONG = "RUNS=3 MAX_SECONDS=5 BATCH_SIZE=64 DATA=synthetic MODEL=mlp-64 PHASE=training make mlp"
SMOLLM2 = "MODEL=smollm2-135m make llm"
ALL = "PRECISION=float32,float16,bfloat16,mixed_float16,mixed_bfloat16"
COMMANDS = [  # (machine, command, what happens after 20 s)
    *((machine, "make doctor", None) for machine in machines.MACHINES),
    ("rtx 4090", f"{ALL} MODEL=resnet18 IMAGE_SIZE=32 PHASE=training SCOPE=device {TINY} make image", None),
    ("rtx 4090", f"{ALL} PHASE=inference,training {MLP}", None),
    ("rtx 4090", f"EPOCHS=1 PHASE=training {MLP}", None),
    ("rtx 4090", f"{ALL} PHASE=training SEQUENCE_LENGTH=8 MODEL=distilbert {TINY} make transformer", None),
    ("rtx 4090", f"PHASE=prefill,decode WEIGHT_BITS=8 PRECISION=bfloat16 PROMPT_TOKENS=8 {TINY} {SMOLLM2}", None),
    ("rtx 4090", f"SIZES=128 {TINY} make tflops", None),
    ("rtx 4090", "WORKLOAD=mlp MODEL=mlp-64 DATA=synthetic MAX_MINUTES=2 make best", None),
    ("rtx 4090", "QUICK=1 make all", None),
    ("rtx 4090", f"COMPILE=1,reduce-overhead PHASE=training {COMPILED} MODEL=mlp-64 DATA=synthetic make mlp", None),
    ("rtx 4090", f"COMPILE=1 SCOPE=device {COMPILED} MODEL=resnet18 IMAGE_SIZE=32 make image", None),
    ("rtx 4090", f"COMPILE=reduce-overhead PHASE=prefill,decode WEIGHT_BITS=8 {COMPILED} {SMOLLM2}", None),
    ("two kinds", f"CUDA_VISIBLE_DEVICES=1 {MLP}", None),
    ("exclusive", f"PRECISION=float32,mixed_float16 {MLP}", None),
    ("pair", f"NUM_DEVICES=1,2 PHASE=training {MLP}", None),
    ("rtx 4090", LONG, "the card is lost"),
    ("rtx 4090", LONG, "Ctrl-C"),
]


def run(folder, machine, command, event):
    """Run a command on a machine; return whether its exit status is as expected."""
    environ = machines.environ(folder, machine, PYTHON=sys.executable, USE_GPU="1")
    started = subprocess.Popen(["env", *command.split()], env=environ, start_new_session=True)
    lost = Path(folder, "lost")
    if event:
        time.sleep(20)
        lost.touch() if event != "Ctrl-C" else os.killpg(started.pid, signal.SIGINT)
    status = started.wait()
    lost.unlink(missing_ok=True)
    return (status == 0) == (event != "Ctrl-C")


if __name__ == "__main__":
    scratch, wrong = tempfile.mkdtemp(), []
    for each in COMMANDS:
        if not sys.argv[1:] or any(word in str(each) for word in sys.argv[1:]):
            print("\n==", *filter(None, each), flush=True)
            wrong += [] if run(scratch, *each) else [each]
    print(f"rows in {scratch}/results; unexpected exit status: {wrong or 'none'}")
    sys.exit(len(wrong))
