"""Put known bugs into the measuring code, one at a time, and see whether the tests notice.

    .venv/bin/python -m tests.mutants                    all of them
    .venv/bin/python -m tests.mutants skip_a_step tf32   some of them

Each bug goes into a copy of the repository, in which the tests that should notice it run. A bug that no test notices
has survived, and the exit status is 1.
"""

import sys
import tempfile

from tests.mutants.apply import copy_with, is_caught
from tests.mutants.bugs import BUGS


def main(names):
    if unknown := set(names) - set(BUGS):
        print(f"no such bug: {', '.join(sorted(unknown))}; there are {', '.join(BUGS)}", file=sys.stderr)
        return 2
    survived = []
    for name in names or BUGS:
        with tempfile.TemporaryDirectory() as folder:
            copy_with(BUGS[name], folder)
            caught = is_caught(BUGS[name], folder)
        print(f"{'caught  ' if caught else 'SURVIVED'}  {name}", flush=True)
        survived += [] if caught else [name]
    print(f"{len(names or BUGS) - len(survived)} of {len(names or BUGS)} caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
