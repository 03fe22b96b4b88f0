"""The documents of the project, and what lies in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(path):
    return path.relative_to(ROOT).as_posix()


def blocks(path):
    """Language and text of every block of code in a document."""
    return FENCE.findall(path.read_text())


def table(path, *columns):
    """The rows below the heading *columns* of each such table, without backticks."""
    lines = path.read_text().splitlines()
    rows = []
    for start, line in enumerate(lines):
        if _cells(line)[: len(columns)] != list(columns):
            continue
        for row in lines[start + 2 :]:
            if not row.startswith("|"):
                break
            rows.append([cell.strip("`") for cell in _cells(row)])
    assert rows, f"{path} has no such table"
    return rows


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
