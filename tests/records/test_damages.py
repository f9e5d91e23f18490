"""A hundred random damages of a real file: each is shown or told in a line, and the other rows stay."""

import csv
import io
import random
import re
from pathlib import Path

import compare_results
import plot_results
import submit_results
from bench.plots import draw, html
from bench.records import results, tables
from bench.settings import read_settings
from tests.test_submit import repository  # noqa: F401  # a fixture

SOURCE = Path("results/amd-epyc-milan-2-cores.csv")
TEXTS = ("", "x", "1,234.5", "13,45", "9/30/2026 10:00", "=1+1", "nan", "1e99", "-1", "0", "9999999", "ok", "\x1b[31m")
FILES, DAMAGES = 8, 12  # and damages of each file


def damage(seed, lines):
    """Damage or lose one of the lines below the header; each is (text, whether it is as it was)."""
    at = seed.randrange(1, len(lines))
    line, cells = lines[at][0], next(csv.reader([lines[at][0]]), [""])
    one, other = (seed.randrange(len(cells)) for _ in range(2))
    swapped, changed = ({one: cells[other], other: cells[one]}, {one: seed.choice(TEXTS)})
    kind = seed.choice(["swapped", "changed", "cut", "doubled", "lost"])
    if kind in ("doubled", "lost"):
        lines[at : at + 1] = [lines[at]] * 2 if kind == "doubled" else []
    elif kind == "cut":
        lines[at] = line[: seed.randrange(len(line) + 1)], False
    else:
        text = io.StringIO()
        cells = [(swapped if kind == "swapped" else changed).get(i, cell) for i, cell in enumerate(cells)]
        csv.writer(text, lineterminator="").writerow(cells)
        lines[at] = text.getvalue(), text.getvalue() == line


def test_each_damage_is_shown_or_told(repository, monkeypatch):  # noqa: F811
    path, seed = repository.folder / SOURCE.name, random.Random(0)
    path.write_bytes(SOURCE.read_bytes())
    repository("add", "."), repository("commit", "-q", "-m", "3"), repository("branch", "-f", "main")
    monkeypatch.setenv("MACHINE", SOURCE.stem), monkeypatch.setenv("RESULTS_DIR", str(repository.folder))
    for _ in range(FILES):
        lines, said = [(line, True) for line in SOURCE.read_text().splitlines()], []
        for _ in range(DAMAGES):
            damage(seed, lines)
        path.write_text("".join(f"{line}\n" for line, _ in lines))
        read = results.read(path, said.append)
        told = [int(number) for line in said for number in re.search(r" lines? ([\d, ]+):", line)[1].split(", ")]
        assert not any(lines[number - 1][1] for number in told)
        assert 1 + len(read) + len(told) == sum(line.strip(",") != "" for line, _ in lines)
        assert html.collect(tables.latest(tables.read_rows([path], said.append)))["lines"]
        assert compare_results.main({"A": str(SOURCE), "B": str(path)}) == 0
        here = submit_results.Repository(repository.folder.parent)
        problems = submit_results.submit(read_settings("submit"), here)
        assert problems
        assert all(line.isprintable() for line in said + problems)
    monkeypatch.setattr(draw, "save", lambda figure, path, **options: path)
    assert plot_results.plot(repository.folder, said.append)
