"""``make mutants``: which broken adapters the contracts catch, and by which promise."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from mutants import mutants, trial


def main() -> int:
    argparse.ArgumentParser(prog="mutants", description=__doc__).parse_args()
    everyone = mutants()
    found = trial(node for mutant in everyone for node in mutant.nodes)
    table = Table("port", "adapter", "what is wrong", "promise", "which says that it ...", "caught")
    killed = 0
    for mutant in everyone:
        caught = found.kills(mutant.case, mutant.promise.number)
        killed += caught
        table.add_row(
            mutant.port,
            mutant.name.removeprefix("Test"),
            mutant.wrong,
            mutant.promise.number,
            mutant.promise.text,
            "yes" if caught else "[bold red]NO",
        )
    console = Console()
    if console.width < 160:  # a table of six columns in a pipe, or in a narrow window
        console.width = 160
    console.print(table)
    console.print(f"{killed} of {len(everyone)} broken adapters are caught")
    return 0 if killed == len(everyone) else 1


if __name__ == "__main__":
    sys.exit(main())
