"""Lay out text and tables: Markdown for pasting, or lines that fit the terminal if stdout is one."""

import shutil
import sys
import textwrap

LEAST_WIDTH = 60  # of a terminal; narrower ones wrap by themselves
ESCAPES = {ord(letter): f"&#{ord(letter)};" for letter in "&<>|[]`"}


def terminal_width():
    """Return the number of columns of the terminal on stdout, at least 60; None if stdout is not a terminal."""
    return max(LEAST_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def wrap(line, indent=""):
    """Break a line at the terminal's width, with later lines indented; leave it whole if stdout is not a terminal."""
    width = terminal_width()
    return line if width is None else textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)


def table(cells, rows):
    """Lay out rows as Markdown, or as a block of lines for each row if stdout is a terminal.

    Args:
        cells: {title: function that returns the cell of a row}, the first one is a block's heading.
    """
    if terminal_width() is None:
        return markdown(cells, rows)
    lines = []
    for row in rows:
        heading, *found = ((title, str(cell(row))) for title, cell in cells.items())
        # A line breaks between two cells, not within one.
        facts = "; ".join(f"{title}: {text}".replace(" ", "\xa0") for title, text in found if text)
        lines += [wrap(heading[1], "  "), wrap(f"    {facts}", "    ").replace("\xa0", " ")]
    return "\n".join(lines)


def markdown(cells, rows):
    """Lay out rows as a Markdown table without empty columns."""
    lines = [[escape(cell(row)) for cell in cells.values()] for row in rows]
    kept = [i for i in range(len(cells)) if any(line[i] for line in lines)]
    lines = [[escape(title) for title in cells], ["---"] * len(cells), *lines]
    return "\n".join("| " + " | ".join(line[i] for i in kept) + " |" for line in lines)


def escape(cell):
    """Turn a title or a cell into plain text in Markdown: no HTML, links, pictures or code."""
    return str(cell).translate(ESCAPES)
