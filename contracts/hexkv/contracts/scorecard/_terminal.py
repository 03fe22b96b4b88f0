"""A scorecard for people."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from hexkv.contracts.kit.promise import Level
from hexkv.contracts.scorecard._card import Card, Scorecard, ScoreLine, Verdict
from hexkv.plugins.cli.output import print_table


def show(scorecard: Scorecard) -> None:
    """Print each card: a table by level, then promises not kept, with reasons, and measurements."""
    kit = scorecard.kit
    for card in scorecard.cards:
        for name, value in _facts(card):
            typer.echo(f"{name}: {value}")
        print_table(
            ["level", "about", *(f"{verdict} " for verdict in Verdict)],
            [
                (
                    level,
                    level.about,
                    *(str(card.count(level)[verdict]) for verdict in Verdict),
                )
                for level in Level
                if card.count(level)
            ],
        )
        for line in card.having(Verdict.BROKEN):
            typer.echo(f"\nbroken {line.promise.number}: {line.promise.text}")
            for name, text in _about(line):
                typer.echo(f"  {name}: {text}")
        if waived := card.having(Verdict.WAIVED):
            typer.echo()
            print_table(
                ["waived", "promise", "because"],
                [(line.promise.number, line.promise.text, line.reason) for line in waived],
            )
        for verdict in (Verdict.NOT_OFFERED, Verdict.NOT_CHECKED):
            if lines := card.having(verdict):
                typer.echo()
                print_table([verdict, "promises"], _by_reason(lines))
        measured = [line for line in card.lines if line.measured]
        if measured:
            typer.echo()
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


def _about(line: ScoreLine) -> list[tuple[str, str]]:
    promise = line.promise
    facts = ("seen", line.reason), ("why it matters", promise.why), ("hint", promise.hint)
    return [(name, text) for name, text in facts if text]


def _by_reason(lines: Sequence[ScoreLine]) -> list[tuple[str, str]]:
    """Each reason, with the numbers of the promises that have it."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(line.reason, []).append(line.promise.number)
    return [(reason, " ".join(numbers)) for reason, numbers in found.items()]
