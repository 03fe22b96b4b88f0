"""``make mutants``: which broken adapters the contracts catch, and by which promise."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mutants import PORTS, Mutant, Port, mutants, trial

README = Path(__file__).parents[3] / "contracts" / "README.md"
_ROW = re.compile(r"^\| ([a-z ]+) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+|-) \|$", re.MULTILINE)
"""A row of the table by port: its name, promises, mutants, those that were caught, and the mean of
the seconds that this took, or a hyphen where that was not measured."""

Row = tuple[int, int, int, str]


def counted(page: str) -> dict[str, Row]:
    """Promises, mutants, caught ones and seconds of each port, as *page* has them in its table."""
    return {name: (int(a), int(b), int(c), d) for name, a, b, c, d in _ROW.findall(page)}


def written(page: str, rows: Iterable[tuple[str, Row]]) -> str:
    """*page* with these rows in its table by port; the other rows stay."""
    merged = counted(page) | dict(rows)
    order = [port.name for port in PORTS if port.name in merged]
    lines = [f"| {name} | {' | '.join(map(str, merged[name]))} |" for name in order]
    head = (
        "| port | promises | mutants | caught | mean seconds |\n| --- | --- | --- | --- | --- |\n"
    )
    before, after = page.split(head)
    rest = after[len(re.match(r"(\|.*\n)*", after)[0]) :]
    return before + head + "\n".join(lines) + "\n" + rest


def _of(port: Port, everyone: Sequence[Mutant], table: Table) -> tuple[str, Row]:
    """Run the mutants of one port; return its row, and add theirs to *table*."""
    mine = [mutant for mutant in everyone if mutant.port == port.name]
    found = trial(node for mutant in mine for node in mutant.nodes)
    took = []
    for mutant in mine:
        caught = found.kills(mutant.case, mutant.promise.number)
        if caught:
            took.append(found.seconds(mutant.case))
        table.add_row(
            mutant.port,
            mutant.name.removeprefix("Test"),
            mutant.wrong,
            mutant.promise.number,
            mutant.promise.text,
            "yes" if caught else "[bold red]NO",
        )
    mean = f"{sum(took) / max(1, len(took)):.1f}"
    return port.name, (len(port.promises()), len(mine), len(took), mean)


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("ports", nargs="*", help="only these, by default all", metavar="PORT")
    parser.add_argument("--write", action="store_true", help=f"also into {README.name}")
    asked = parser.parse_args()
    chosen = [port for port in PORTS if not asked.ports or port.name in asked.ports]
    table = Table("port", "adapter", "what is wrong", "promise", "which says that it ...", "caught")
    everyone = mutants()
    rows = [_of(port, everyone, table) for port in chosen]
    console = Console()
    if console.width < 160:  # a table of six columns in a pipe, or in a narrow window
        console.width = 160
    console.print(table)
    short = Table("port", "promises", "mutants", "caught", "mean seconds")
    for name, row in rows:
        short.add_row(name, *map(str, row))
    console.print(short)
    if asked.write:
        README.write_text(written(README.read_text(), rows))
    total, killed = (sum(row[column] for _, row in rows) for column in (1, 2))
    console.print(f"{killed} of {total} broken adapters are caught")
    return 0 if killed == total else 1


if __name__ == "__main__":
    sys.exit(main())
