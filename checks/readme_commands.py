"""Run the commands of README.md in a fresh clone, and check that each one succeeds.

    .venv/bin/python -m checks.readme_commands       installs everything in the clone, as a new user does
    PYTHON=.venv/bin/python .venv/bin/python -m checks.readme_commands       installs nothing

The commands are the indented lines and the tables of the last commit. They run in their order, each once, with the
settings in SHORT. A command that is neither in SHORT nor in SKIPPED is a failure.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.settings import KNOWN_NAMES

BRIEF = {"RUNS": "1", "MAX_SECONDS": "0.3"}
# What follows make: settings that make it short. Those of the command itself have precedence.
SHORT = {
    "image": BRIEF | {"IMAGE_SIZE": "64"},
    "mlp": BRIEF | {"MODEL": "mlp-64", "DATA": "synthetic"},
    "llm": BRIEF | {"PROMPT_TOKENS": "64", "NEW_TOKENS": "8"},
    "all": {"RUNS": "1", "QUICK": "1"},
    "best": {"MAX_SECONDS": "0.3", "IMAGE_SIZE": "64", "MAX_MINUTES": "1"},
}
SHORT |= {name: {} for name in ("submit", "compare", "match", "plot")}
# What the reader fills in: rows that the commands before have measured, and those of another machine.
FILLED_IN = {"A=...": "A=readme", "B=...": "B=amd-epyc-2-cores"}
SKIPPED = {"pip install": "it changes the packages of the system"}  # start of a command: reason


def read_commands(page):
    """Return the commands of a page in their order, each once: indented lines, and what starts make in a table."""
    commands = []
    for line in re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL).splitlines():
        if line.startswith("    "):
            commands.append(line.partition(" #")[0].strip())
        elif line.startswith("|"):
            commands += re.findall(r"`((?:[A-Z_]+=\S+ )*make [^`]+)`", line)
    return list(dict.fromkeys(commands))


def clone(folder):
    """Clone the last commit into a folder as the main branch, because only rows of that branch can be submitted."""
    git = ["git", "-C", folder]
    subprocess.run(["git", "clone", "--quiet", ".", folder], check=True)
    subprocess.run([*git, "checkout", "--quiet", "-B", "main"], check=True)
    subprocess.run([*git, "update-ref", "refs/remotes/origin/main", "HEAD"], check=True)


def find_target(command):
    """Return what follows make in a command, or the name of its benchmark script; None for another program."""
    words = [word for word in shlex.split(command) if not re.match("[A-Z_]+=", word)]
    if len(words) != 2 or words[0] not in ("make", ".venv/bin/python"):
        return None
    return words[1].removesuffix("_benchmark.py")


def run_command(command, folder, python):
    """Run a command in the clone if it can run here; return "ok", "skipped" or "FAILED", and the reason."""
    framework = re.search("FRAMEWORK=([a-z]+)", command)
    if (
        python
        and framework
        and subprocess.run([python, "-c", f"import {framework[1]}"], capture_output=True).returncode
    ):
        return "skipped", f": PYTHON does not have {framework[1]}"
    if reason := next((SKIPPED[start] for start in SKIPPED if command.startswith(start)), None):
        return "skipped", f": {reason}"
    target = find_target(command)
    if target not in SHORT:
        return "FAILED", ": it is not known: add it to SHORT or SKIPPED in checks/readme_commands.py"
    environ = {name: text for name, text in os.environ.items() if name not in (*KNOWN_NAMES, "MAKEFLAGS", "MAKELEVEL")}
    environ |= SHORT[target] | {"MACHINE": "readme"} | ({"PYTHON": python} if python else {})
    replaced = {".venv/bin/python": python} if python else {}
    replaced |= FILLED_IN | {"PYTHON=python3": f"PYTHON={sys.executable}"}  # one that has PyTorch
    for written, meant in replaced.items():
        command = command.replace(written, meant)
    how = {"cwd": folder, "env": environ, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    done = subprocess.run(command, shell=True, stderr=subprocess.STDOUT, **how)
    return ("FAILED", f": exit status {done.returncode}\n{done.stdout[-2000:]}") if done.returncode else ("ok", "")


def main():
    """Run the commands of README.md, print a line for each, and return the exit status, 1 if one fails."""
    python = os.environ.get("PYTHON") and os.path.abspath(os.environ["PYTHON"])
    states = []
    with tempfile.TemporaryDirectory() as folder:
        clone(folder)
        for command in read_commands(Path(folder, "README.md").read_text()):
            start = time.monotonic()
            state, reason = run_command(command, folder, python)
            states.append(state)
            print(f"{state:<8}{time.monotonic() - start:4.0f} s  {command}{reason}", flush=True)
    print(", ".join(f"{states.count(state)} {state}" for state in ("ok", "skipped", "FAILED")))
    print(f"nothing was installed: all of them ran with PYTHON={python}" if python else "make installed all packages")
    return 1 if "FAILED" in states else 0


if __name__ == "__main__":
    sys.exit(main())
