"""Check the rows that a machine adds to results/, before they are sent and when they arrive.

    make submit           checks this machine's rows and prints how to send them; it sends nothing
    make check-results    checks what was added since BASE (default: the merge base with origin/main, or main)

BASE and HEAD name commits. Without HEAD, the files in the folder count, committed or not. CI runs the checker of the
base branch on the rows of a pull request, which are only read:

    BASE=origin/main HEAD=pull python3 -m bench.records.submission check

Exit status: 0 no problems, 1 problems, one line each. Standard library only, except for the table of `make submit`.
"""

import csv
import getpass
import io
import os
import platform
import re
import sys
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from bench import cli
from bench.host import environment
from bench.records import physics
from bench.records.columns import COLUMNS
from bench.records.physics import Problem
from bench.settings import ROOT, SettingError, read_settings

GENERATED = re.compile(r"results/(README\.md|index\.html|(?:plots|cards)/[\w.-]+\.png)")
OWN = ("run_id", "machine", "workload", "model", "throughput")  # columns of every file of this program
MOST_CHARACTERS = 65_536  # of an issue on GitHub
MOST_PRINTED = 20
PARTS = ("forward", "backward", "optimizer")  # phases that are not headlines
COMMON_NAMES = ("root", "user", "admin", "runner", "localhost")  # tell nothing


class Repository:
    """The git repository of a folder, read only."""

    def __init__(self, root=ROOT, base=None, head=None):
        self.root, self.head = Path(root), head
        self.tip, self.base = "HEAD", None  # of the main branch, and where the head left it
        for tip in [base] if base else ["main", "origin/main"]:
            if text := self.git("merge-base", tip, head or "HEAD"):
                self.tip, self.base = tip, text.strip()
        if base and not self.base:
            raise SettingError(
                f"BASE={base!r} has no common commit with {head or 'HEAD'}: fetch it, or name another one"
            )

    def git(self, *command):
        """Return what a git command prints; None if it fails."""
        return environment.run_git(self.root, *command)

    def changes(self):
        """Return {path below results/: "A", "M", "D" ...} since the base."""
        text = self.git(
            "diff", "--name-status", "--no-renames", "-z", self.base, *filter(None, [self.head]), "--", "results"
        )
        cells = (text or "").split("\0")[:-1]
        new = "" if self.head else self.git("ls-files", "--others", "--exclude-standard", "-z", "--", "results") or ""
        return dict(zip(cells[1::2], cells[::2], strict=True)) | dict.fromkeys(new.split("\0")[:-1], "A")

    def read(self, path, commit=None):
        """Return the text of a file in a commit, by default the head; "" if it has none."""
        if commit or self.head:
            return self.git("show", f"{commit or self.head}:{path}") or ""
        file = self.root / path
        return file.read_bytes().decode(errors="replace") if file.is_file() else ""

    def find_fault(self, commit):
        """Explain what is wrong with the commit of a row; "" if its programs are those of a commit of the base."""
        if not commit:
            return "is empty: clone the repository with git instead of downloading its files, then measure again"
        if not re.fullmatch("[0-9a-f]{12,40}", commit):
            return "must be a commit without changes: commit or stash them, then measure again"
        shared = self.git("merge-base", self.tip, commit)
        if not shared:
            return "is not in this repository: measure with a commit of its main branch"
        if self.git("diff", "--quiet", shared.strip(), commit, "--", ".", ":!results") is None:
            return "changes programs and is not in the main branch: measure with a commit of that branch"
        return ""


def parse(text):
    """Read the rows of a CSV file, each with its line; returns (rows, Problems)."""
    if "\ufffd" in text:
        return [], [Problem(1, "schema", "", "the file is not UTF-8", "save it as UTF-8")]
    rows, reader = [], csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        faults = [name for name in header if name not in COLUMNS or header.count(name) > 1]
        faults += [name for name in OWN if name not in header]
        if faults:
            return [], [Problem(1, "header", faults[0], "must be a known column, once", "update this repository")]
        for cells in reader:
            if len(cells) != len(header):
                counts = f"the row has {len(cells)} cells, the header {len(header)}"
                return rows, [Problem(reader.line_num, header[-1], "", counts, "remove the row")]
            rows.append((reader.line_num, dict.fromkeys(COLUMNS, "") | dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        return rows, [Problem(reader.line_num, "schema", "", f"the line is not CSV ({error})", "remove the row")]
    return rows, []


def check_file(repository, path, names=()):
    """Check the rows that a file of results/ adds to the base; returns (those rows, Problems)."""
    rows, problems = parse(repository.read(path))
    before = parse(repository.read(path, repository.base))[0] if repository.base else []
    for (line, row), (_, old) in zip(rows, before):  # noqa: B905
        if row != old:
            column = next(name for name in COLUMNS if row[name] != old[name])
            restore = f"restore {old[column]!r}, and add rows only at the end"
            return [], [Problem(line, column, row[column], "changes a row that is already published", restore)]
    if len(rows) < len(before) and not problems:
        lost = before[len(rows)]
        return [], [Problem(lost[0], "run_id", lost[1]["run_id"], "is missing", "restore this row")]
    added = rows[len(before) :]
    if not added and not problems:
        problems = [Problem(1, "schema", "", "the file adds no row", "measure something, or leave the file as it was")]
    known = [row for _, row in before]
    commit = repository.base or "HEAD"
    for other in (repository.git("ls-tree", "--name-only", commit, "results/") or "").splitlines():
        if other.endswith(".csv") and other not in (path, "results/published.csv"):
            known += [row for _, row in parse(repository.read(other, commit))[0]]
    found = physics.check_rows(added, PurePosixPath(path).stem, datetime.now(UTC), known, names)
    return added, [*check_commits(repository, added), *found, *problems]


def check_commits(repository, rows):
    """Check that each row is of a known commit, and was not measured before it; a Problem for the first row of each."""
    first = {}
    for line, row in rows:
        first.setdefault(row["commit"], (line, row))
    for commit, (line, row) in first.items():
        if fault := repository.find_fault(commit):
            yield Problem(line, "commit", commit, *fault.split(": "))
            continue
        made = int(repository.git("show", "-s", "--format=%ct", f"{commit}^{{commit}}") or 0)  # seconds since 1970
        if row["timestamp"][:19] < datetime.fromtimestamp(made - 3600, UTC).isoformat()[:19]:
            yield Problem(line, "timestamp", row["timestamp"], f"is before the commit {commit}", "set the clock")


def check_results(repository):
    """Check everything that changed below results/; returns the lines to print, and whether there are problems."""
    if not repository.base:
        raise SettingError("BASE='' and there is no branch main: name the commit that the rows are added to")
    said, machines, generated, count = [], [], [], 0
    for path, change in repository.changes().items():
        name = path.removeprefix("results/").removesuffix(".csv")
        if GENERATED.fullmatch(path):
            generated.append(path)
        elif change not in ("A", "M"):
            said.append(f"{path!r} must not be removed or replaced: restore it")
        elif path != f"results/{name}.csv" or not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name) or name == "published":
            said.append(f"{path!r} is not a machine's file of rows: leave it out")
        else:
            machines.append(path)
    if len(machines) > 1:
        said.append(f"{', '.join(sorted(machines))}: send each machine's file by itself")
    for path in machines:
        rows, problems = check_file(repository, path)
        count += len(rows)
        said += [problem.describe(path) for problem in problems]
    if said:
        more = [f"... and {len(said) - MOST_PRINTED} more problems"] * (len(said) > MOST_PRINTED)
        return said[:MOST_PRINTED] + more, True
    said = [f"{', '.join(machines) or 'results/'}: {count} new rows, no problems"]
    said += [f"not checked, make them again with `make plot`: {', '.join(generated)}"] * bool(generated)
    return said, False


def submit(settings, repository):
    """Check this machine's rows and print how to send them; returns the exit status."""
    host = environment.describe_host(settings.machine)
    file = settings.results_dir / f"{host.machine}.csv"
    if not file.is_file():
        raise SettingError(f"MACHINE={host.machine!r} has no file {cli.display_path(file)}: run `make image` first")
    path = os.path.relpath(file.resolve(), repository.root.resolve())
    added, problems = check_file(repository, path, own_names())
    if problems:
        for problem in problems[:MOST_PRINTED]:
            print(problem.describe(path), file=sys.stderr)
        print(f"{len(problems)} problems in {path}: fix them, then run `make submit` again", file=sys.stderr)
        return 1
    print(describe(file, added) + "\n")
    print(f"{path}: {len(added)} new rows, no problems. Nothing has been sent. To send them:")
    branch = f"rows-{host.machine}"
    print(f"1. git switch {branch} || git switch -c {branch}; git add {path} && git commit -m 'Rows of {host.machine}'")
    print("2. push that branch to your fork and open a pull request with the text above")
    size = len(file.read_text(encoding="utf-8"))
    paste = "or paste its text" if size < MOST_CHARACTERS * 0.9 else f"which is too long to paste ({size:,} characters)"
    print(f"3. or, without git: open the issue form 'Add my machine' on GitHub and attach {path}, {paste}")
    return 0


def own_names():
    """Return the names of this computer and its user, which must not be sent."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = ""
    return tuple({user, platform.node().partition(".")[0]} - {"", *COMMON_NAMES})


def describe(file, added):
    """Return the title and text of the pull request: the machine, what was measured, and the figures."""
    from bench.records import layout, tables  # pandas, which CI does without

    runs = {row["run_id"] for _, row in added}
    every = tables.read_rows([file])
    lines = tables.latest(every)
    lines = lines[lines["run_id"].isin(runs)]
    is_headline = (lines["model"] != "matmul") & ~lines["phase"].isin(PARTS)
    figures = lines[is_headline].to_dict("records")
    names = ("device_name", "cpu_name", "cpu_count", "memory_gb", "os", "commit", "workload")
    values = (", ".join(dict.fromkeys(row[name] for _, row in added if row[name])) for name in names)
    device, cpu, count, memory, system, commit, workloads = values
    facts = [
        f"{device} ({cpu}, {count} logical CPUs, {memory} GB, {system})",
        f"{len(added)} rows of {len(runs)} runs, commit {commit}; `make submit` found no problems.",
    ]
    return "\n\n".join([f"Rows of {file.stem}: {workloads}", "\n".join(facts), layout.markdown(tables.CELLS, figures)])


def main():
    """Run `check` or `submit`, as the command line says; returns the exit status."""
    if sys.argv[1:] == ["submit"]:
        return submit(read_settings("submit"), Repository())
    lines, has_failed = check_results(Repository(ROOT, os.environ.get("BASE"), os.environ.get("HEAD")))
    print("\n".join(lines), file=sys.stderr if has_failed else sys.stdout)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
