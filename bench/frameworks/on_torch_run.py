"""torchrun, which also writes how each rank failed into a file.

    python -P bench/frameworks/on_torch_run.py FILE --standalone --nproc-per-node=2 script.py

torchrun itself only prints that, with a traceback of its own. FILE is not written if all ranks succeed.
"""

import json
import logging
import sys
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(path, *arguments):
    """Run torchrun; returns 0, 130 after a signal, or 1 if a rank failed.

    FILE gets what bench/host/ranks.py's find_first_failure() reads.
    """
    logging.disable(logging.CRITICAL)  # warnings about each rank that it ends
    try:
        run.main(arguments)
    except SignalException:
        return 130
    except ChildFailedError as error:
        failures = {rank: describe(failure) for rank, failure in error.failures.items()}
        Path(path).write_text(json.dumps(failures))
        return 1
    return 0


def describe(failure):
    report = failure.error_file_data["message"]
    report = report if isinstance(report, dict) else {}
    return {"exit_status": failure.exitcode, "seconds": report.get("seconds", failure.timestamp), "report": report}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
