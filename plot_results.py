"""Draw everything in results/: rows become results/plots/*.png, results/README.md and results/index.html.

Also draws the card of each machine that has measured enough of the standard set, in results/cards.

    make plot
    make page        # only results/index.html

Needs pandas and matplotlib, no framework and no screen. Plots show each machine's own rows next to published ones
(results/published.csv), which are hollow. Rows with a wrong clock are in no plot.
"""

import functools
import sys

from bench import cli
from bench.plots import card, html, pictures, readme, select
from bench.records import results, tables
from bench.settings import SettingError, read_settings


def plot(folder, say):
    """Draw all plots and write both pages; return the paths. say() gets a line for each file that is left out."""
    stored = select.load(folder, say)
    paths = pictures.draw_all(stored, folder / "plots", say)
    with results.replace_file(folder / "README.md") as file:
        file.write_text(readme.write(stored, paths), encoding="utf-8")
    paths += card.draw_all(stored, folder)
    return [*paths, folder / "README.md", html.write_page(stored.rows, folder / "index.html")]


def main():
    """Write plots and pages, print their paths, and return the exit status."""
    folder = read_settings("plot").results_dir
    if not folder.is_dir():
        raise SettingError(f"RESULTS_DIR={str(folder)!r} is not a folder: name one with CSV files of results")
    say = functools.partial(print, file=sys.stderr)
    if sys.argv[1:] == ["page"]:
        rows = tables.read_rows(sorted(folder.glob("*.csv")), say)
        paths = [html.write_page(rows, folder / "index.html")]
    else:
        paths = plot(folder, say)
    for path in paths:
        print(cli.display_path(path))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
