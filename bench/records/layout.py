"""Lay out text and tables: Markdown for pasting, or lines that fit the terminal if stdout is one."""

import shutil
import sys
import textwrap

LEAST_WIDTH = 60  # of a terminal; narrower ones wrap by themselves


def terminal_width():
    """Return the number of columns of the terminal on stdout, at least 60; None if stdout is not a terminal."""
    return max(LEAST_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def wrap(line, indent=""):
    """Break a line at the terminal's width, with later lines indented; leave it whole if stdout is not a terminal."""
    width = terminal_width()
    return line if width is None else textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)


def table(cells, rows):
    """Lay out rows as Markdown without empty columns, or as a block of lines for each row if stdout is a terminal.

    Args:
        cells: {title: function that returns the cell of a row}, the first one is a block's heading.
    """
    found = [[str(cell(row)) for cell in cells.values()] for row in rows]
    if terminal_width() is None:
        columns = [column for column in zip(cells, ["---"] * len(cells), *found, strict=True) if any(column[2:])]
        return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns, strict=True))
    lines = []
    for heading, *texts in found:
        # A line breaks between two cells, not within one.
        named = zip(list(cells)[1:], texts, strict=True)
        facts = "; ".join(f"{title}: {text}".replace(" ", "\xa0") for title, text in named if text)
        lines += [wrap(heading, "  "), wrap(f"    {facts}", "    ").replace("\xa0", " ")]
    return "\n".join(lines)
