"""``hexkv check``: checks that an adapter keeps its contract, and prints the scorecard."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from hexkv.contracts.check._run import CheckFailed, UnknownPromise
from hexkv.contracts.check._run import run as run_contracts
from hexkv.contracts.check._targets import Target, black_box, find
from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.contracts.kit.limits import DEFAULT, Limits, Overdue
from hexkv.contracts.kit.promise import Level
from hexkv.contracts.scorecard import badge, show
from hexkv.plugins.cli.output import (
    Json,
    aside,
    installed,
    new_app,
    print_json,
    refuse,
    run_app,
    time_option,
)
from hexkv.plugins.clock import SystemClock
from hexkv.ports import ChunkStore, Directory

_PATIENCE = 30.0
"""Seconds within which a store or a directory must answer before it is checked at all."""

_WIDTH, _NUMBERS = 100, 15
"""The columns of a line of the list of promises, and those of them for numbers."""


def check(  # noqa: PLR0913
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="A URL, an adapter's name, or module:factory.", show_default=False)
    ] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting.")
    ] = None,
    level: Annotated[
        list[Level] | None, typer.Option(help="Only this level. May be repeated.")
    ] = None,
    waive: Annotated[
        list[str] | None,
        typer.Option(metavar="PROMISE=REASON", help="Do not check this promise, and say why."),
    ] = None,
    limit: Annotated[
        float | None,
        time_option("For each promise, instead of 75 s; 0: no limit."),
    ] = None,
    as_json: Json = False,
    badge_file: Annotated[
        Path | None, typer.Option("--badge", metavar="FILE", help="Write an SVG.")
    ] = None,
    outside: Annotated[
        bool, typer.Option("--black-box", help="The target is a server: lm://host:port.")
    ] = False,
    destructive: Annotated[
        bool,
        typer.Option("--destructive", help="Check a store in its very place: its chunks are lost."),
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="List every promise.")] = False,
) -> None:
    """Check an adapter against its contract. Exit code 1 if a promise is broken."""
    if listing:
        _list(as_json=as_json)
        return
    file = "".join(context.args[:1])  # `--json FILE`, as it was in 0.2
    if len(context.args) > as_json:
        raise typer.BadParameter(f"check one target at a time: {' '.join(context.args)!r} is extra")
    if not target:
        raise typer.BadParameter("say what to check: a URL, an adapter's name, or module:factory")
    waived = _pairs(waive, "--waive", "PROMISE=REASON")
    chosen = _pairs(settings, "--set", "KEY=VALUE")
    if outside:
        if chosen:
            raise typer.BadParameter("a black box has no settings")
        found = black_box(target, installed())
    else:
        with _limited(target, limit), aside():
            found = find(target, installed(), chosen, destructive=destructive)
            _is_there(found)
    try:
        scorecard = run_contracts(found, level or [], waived, limit)
    except UnknownPromise as error:
        raise typer.BadParameter(str(error)) from error
    written = json.dumps(scorecard.as_json(), indent=2)
    if as_json and file in ("", "-"):
        typer.echo(written)
    else:
        show(scorecard)
        if file:
            _save("--json", Path(file), written + "\n")
    if badge_file is not None:
        (card,) = scorecard.cards
        _save("--badge", badge_file, badge(card, scorecard.kit))
    raise typer.Exit(1 if scorecard.broken else 0)


@contextmanager
def _limited(target: str, limit: float | None) -> Iterator[None]:
    """Limit opening the target and one call on it to the time of a promise.

    Raises:
        CheckFailed: the time was up.
    """
    if limit == 0:
        yield
        return
    limits = Limits(DEFAULT if limit is None else limit, os.dup(2))
    try:
        with limits.within(target, "L0", "it can be opened, asked and closed"):
            yield
    except Overdue as error:
        raise CheckFailed(f"{target} {error}") from error
    finally:
        limits.close()


def _is_there(target: Target) -> None:
    """Check that the target answers, so that one that is down fails once, not at every promise.

    Raises:
        StoreError: it does not answer.
    """
    with target.open(()) as candidate:
        soon = deadline(_PATIENCE, SystemClock())
        if isinstance(candidate.subject, ChunkStore):
            candidate.subject.contains([chunk_key("is the store there?")], soon)
        elif isinstance(candidate.subject, Directory):
            candidate.subject.members(soon)


def _save(flag: str, path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        refuse(flag, f"{path}: cannot be written: {error.strerror}")


def _list(*, as_json: bool) -> None:
    # Not at the top: it imports every contract, which pytest must do first in a check.
    from hexkv.contracts.check._catalogue import promises

    if as_json:
        print_json([asdict(promise) for promise in promises().values()])
        return
    for promise in promises().values():
        for name, text in (
            (promise.number, promise.text),
            ("", f"{promise.clause}: {promise.why}"),
            ("", f"hint: {promise.hint}" if promise.hint else ""),
        ):
            for line in wrap(text, _WIDTH - _NUMBERS):
                typer.echo(f"{name:<{_NUMBERS}}{line}")
                name = ""


def _pairs(words: Sequence[str] | None, option: str, form: str) -> dict[str, str]:
    found = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not (name and equals) or (option == "--waive" and not value.strip()):
            raise typer.BadParameter(f"{option} wants {form}, not {word!r}")
        found[name] = value
    return found


def run(arguments: Sequence[str]) -> int:
    """Run the command with *arguments*; return the exit code."""
    app = new_app("Check an adapter against its contract.")
    app.command(context_settings={"allow_extra_args": True})(check)
    return run_app(app, "hexkv check", arguments)
