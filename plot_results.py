"""Draw everything in results/: rows become results/plots/*.png, results/README.md and results/index.html.

Also draws the card of each machine that has measured enough of the standard set, in results/cards.

    make plot

Needs pandas and matplotlib, no framework and no screen. Plots show each machine's own rows next to published ones
(results/published.csv, also with another RESULTS_DIR), which are hollow.
"""

import sys

from bench import process
from bench.plots import card, frames, html, pictures
from bench.records import results, tables
from bench.settings import SettingError, read_runs

ABOUT = """# Results

Written by `make plot` from the CSV files in this folder. [index.html](index.html) has all results, own and published
ones: open it in a browser to choose, search and filter. `make compare` compares two machines."""


def plot(folder, say):
    """Draw all plots and write both pages; return the paths.

    say() gets a line for each file that is left out. Raises SettingError, and writes nothing, if there is no result.
    """
    latest = tables.latest(tables.read(folder, say))
    if latest["published"].all():
        raise SettingError(f"RESULTS_DIR={str(folder)!r} has no results to draw: measure some, as `make image` does")
    for page in (folder / "README.md", folder / "index.html"):
        if page.is_file() and "`make plot`" not in page.read_text(errors="replace")[:500]:
            why = f"holds a {page.name} that `make plot` has not written: move it, or choose another folder"
            raise SettingError(f"RESULTS_DIR={str(folder)!r} {why}")
    valid = frames.select_valid(latest)
    paths = [*pictures.draw_all(valid, folder / "plots"), *card.draw_all(valid, folder)]
    shown = [f"![{path.stem}]({path.parent.name}/{path.name})" for path in paths]
    results.replace_file(folder / "README.md", ("\n\n".join([ABOUT, *shown]) + "\n").encode())
    return [*paths, folder / "README.md", html.write_page(latest, folder / "index.html")]


def main():
    """Write plots and pages, print their paths, and return the exit status."""
    for path in plot(read_runs("plot")[0].settings.results_dir, lambda line: print(line, file=sys.stderr)):
        print(results.display_path(path))
    return 0


if __name__ == "__main__":
    sys.exit(process.run_script(main))
