"""Pictures and tables of what lies in results/: rows become results/plots/*.png and results/README.md.

    make plot

Needs pandas and matplotlib, no framework and no screen. Pictures show every machine's own rows beside the published
ones (results/published.csv), which are hollow. Rows whose clock was wrong are in no picture.
"""

import functools
import os
import sys

from bench import cli
from bench.plots import draw, page, pictures, select
from bench.settings import SettingError, read_settings


def plot(folder, say):
    """Draw everything and write the page; returns the paths that were written."""
    stored = select.load(folder, say)
    paths = pictures.draw_all(stored, folder / "plots", say)
    with draw.beside(folder / "README.md") as file:
        file.write_text(page.write(stored, paths), encoding="utf-8")
    return [*paths, folder / "README.md"]


def main():
    """Write pictures and page, and name them; returns the exit status."""
    folder = read_settings("plot").results_dir
    if not folder.is_dir():
        raise SettingError(f"RESULTS_DIR={str(folder)!r} is no folder: name one with CSV files of results")
    for path in plot(folder, functools.partial(print, file=sys.stderr)):
        print(os.path.relpath(path))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
