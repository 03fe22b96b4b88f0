"""A scorecard for people."""

from __future__ import annotations

import typer

from hexkv.contracts.promise import Level
from hexkv.contracts.scorecard._card import Card, Line, Scorecard, Verdict
from hexkv.plugins.cli.output import print_table


def show(scorecard: Scorecard) -> None:
    """Print each card: a table by level, then what was not simply kept, and why."""
    kit = scorecard.kit
    for card in scorecard.cards:
        for name, value in _facts(card):
            typer.echo(f"{name}: {value}")
        print_table(
            ["level", "about", *(f"{verdict} " for verdict in Verdict)],
            [
                (level, level.about, *(str(card.count(level)[verdict]) for verdict in Verdict))
                for level in Level
                if card.count(level)
            ],
        )
        for verdict in Verdict:
            if verdict is not Verdict.KEPT and (lines := card.having(verdict)):
                print_table([verdict, "promise", "because"], [_row(line) for line in lines])
        measured = [line for line in card.lines if line.measured]
        if measured:
            print_table(
                ["measured", "promise", "value"],
                [
                    (line.promise.number, name, str(value))
                    for line in measured
                    for name, value in line.measured.items()
                ],
            )
        typer.echo()
    typer.echo(
        f"kit: hexkv-contracts {kit.version}, contract {kit.contract}, Python {kit.python},"
        f" {kit.platform}"
    )


def _facts(card: Card) -> list[tuple[str, str]]:
    subject = card.subject
    facts = [("subject", subject.name), ("adapter", subject.distribution)]
    if subject.contract is not None:
        facts.append(("written for", f"contract {subject.contract}"))
    return [(name, value) for name, value in [*facts, ("engine", subject.engine)] if value]


def _row(line: Line) -> tuple[str, str, str]:
    because = [line.reason]
    if line.verdict is Verdict.BROKEN:
        because += [line.promise.why, line.promise.hint and f"hint: {line.promise.hint}"]
    return line.promise.number, line.promise.text, "\n".join(filter(None, because))
