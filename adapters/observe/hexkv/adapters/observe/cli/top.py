"""``hexkv top``: running caches, live, from the pages of metrics that they serve."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from itertools import repeat
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from hexkv.adapters.observe.cli.pages import Page, PageAddress, TierView, View, view
from hexkv.plugins.cli.output import (
    Json,
    human_size,
    new_app,
    plain,
    print_json,
    run_app,
    time_option,
)
from hexkv.ports import ConfigError, StoreUnreachable

if TYPE_CHECKING:
    from rich.table import Table

_PATIENCE = 5.0
"""Seconds that a page may take."""

_AT_ONCE = 16
_COLUMNS = {
    "hits": 6,
    "read/s": 8,
    "write/s": 8,
    "queue": 8,
    "used": 8,
    "fill": 6,
    "breaker": 9,
}
"""The widths of the columns beside the tier's name: none of their cells is longer."""

Views = Mapping[str, View | str]
"""By address, the view of a page, or the reason that there is none."""


class Watched:
    """Pages that are read again and again."""

    def __init__(self, places: Mapping[str, PageAddress]) -> None:
        """Read the pages at *places*, by their names."""
        self._places = places
        self._before: dict[PageAddress, tuple[float, Page]] = {}

    def look(self) -> Views:
        """Return the changes since the last look; the first time, hit rates since each start."""
        with ThreadPoolExecutor(min(_AT_ONCE, len(self._places))) as threads:
            found = threads.map(self._one, self._places.values())
            return dict(zip(self._places, found, strict=True))

    def _one(self, place: PageAddress) -> View | str:
        try:
            page = Page.parse(place.read(_PATIENCE))
        except StoreUnreachable as error:
            self._before.pop(place, None)
            return str(error)
        now = time.monotonic()
        if not page.values:
            return "has no metrics of hexkv"
        when, before = self._before.get(place, (-math.inf, Page()))
        self._before[place] = now, page
        return view(before, page, max(1e-3, now - when))


def top(
    addresses: Annotated[
        list[str],
        typer.Argument(help="host:port of hexkv, vLLM or SGLang, or URLs.", show_default=False),
    ],
    seconds: Annotated[
        float, time_option("Between two readings.", "--seconds", least=0.1, most=3600)
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="How many, then end. With --json: 1.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show hit rates by tier, bandwidth, queues, fill, breakers, tenants and misses by reason.

    Reads the pages of metrics of any number of processes; Ctrl-C ends it. Exit code 1 if no page
    could be read at the end.
    """
    places: dict[str, PageAddress] = {}
    try:
        for address in addresses:
            places[address.partition("://")[2] or address] = PageAddress.of(address)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="ADDRESSES") from error
    watched = Watched(places)
    views = watched.look()
    with suppress(KeyboardInterrupt):
        if as_json:
            views = _print(watched, views, seconds, count or 1)
        else:
            views = _show(watched, views, seconds, count)
    raise typer.Exit(int(all(isinstance(found, str) for found in views.values())))


def _print(watched: Watched, views: Views, seconds: float, count: int) -> Views:
    for _ in range(count):
        Event().wait(seconds)
        views = watched.look()
        print_json(
            {
                where: {"error": found} if isinstance(found, str) else asdict(found)
                for where, found in views.items()
            }
        )
    return views


def _show(watched: Watched, views: Views, seconds: float, count: int | None) -> Views:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False)
    # Nothing is drawn between two readings: over a slow line only a frame is sent.
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        if count is None:  # one reading has no rates: it shows what there is until the next
            live.update(frame(views, console.width, console.height), refresh=True)
        for _ in repeat(None) if count is None else range(count):
            Event().wait(seconds)
            views = watched.look()
            live.update(frame(views, console.width, console.height), refresh=True)
    if not console.is_terminal:
        console.line()  # which Live prints to terminals only
    return views


def frame(views: Views, width: int, height: int) -> Table:
    """Return *views* as one picture of at most *width* columns and *height* lines."""
    from rich.table import Table

    notes = _notes(views)
    rows = [row for where, found in views.items() for row in _rows(where, found, width)]
    room = max(1, height - 2 - len(notes))
    left = len(rows) - room
    if left > 0:
        rows = [*rows[: room - 1], f"... and {left + 1} lines more"]
    outer = Table.grid()
    for line in (_line("tier", _COLUMNS, width)[-1], *rows, *notes):
        outer.add_row(plain(line)[:width])
    return outer


def _line(name: str, cells: Iterable[str], width: int) -> list[str]:
    """Return the line of a tier, or two if its name is longer than its column."""
    padded = [cell.rjust(size) for cell, size in zip(cells, _COLUMNS.values(), strict=True)]
    padded[-1] = padded[-1].strip()
    room = width - sum(_COLUMNS.values()) - len(_COLUMNS)
    words = " ".join(padded)
    if len(name) <= room:
        return [f"{name.ljust(room)} {words}".rstrip()]
    return [name, f"{' ' * room} {words}".rstrip()]


def _rows(where: str, found: View | str, width: int) -> list[str]:
    """Return the lines of a page: its address, then its tiers."""
    if isinstance(found, str):
        return [f"{where}: {found}"]
    if not found.tiers:
        return [f"{where}: no tiers"]
    tiers = [_line(f"  {name}", _cells(tier), width) for name, tier in found.tiers.items()]
    return [where, *(line for lines in tiers for line in lines)]


def _cells(tier: TierView) -> list[str]:
    used, budget = tier.used_bytes, tier.budget_bytes
    return [
        _percent(tier.hit_rate),
        _size(tier.read_bytes_per_second),
        _size(tier.written_bytes_per_second),
        _size(tier.queued_bytes),
        "" if used is None else _size(used),
        _percent(used / budget if used is not None and budget else None),
        tier.breaker,
    ]


def _notes(views: Views) -> list[str]:
    """Return the lines below the table: all pages together, reasons of misses, and tenants."""
    shown = [found for found in views.values() if isinstance(found, View)]
    # A node and its clients count the same requests, and show the same tiers: each is added once.
    known = [it for it in shown if "node" not in it.roles] or shown
    own = [it for it in shown if "client" not in it.roles] or shown[:1]
    tokens = sum(found.tokens_per_second for found in known)
    hit = sum((found.hit_rate or 0.0) * found.tokens_per_second for found in known)
    missed: dict[str, float] = {}
    tenants: dict[str, float] = {}
    for found in known:
        for reason, rate in found.missed.items():
            missed[reason] = missed.get(reason, 0.0) + rate
    for found in own:
        for tier in found.tiers.values():
            for tenant, used in tier.tenants.items():
                tenants[tenant] = tenants.get(tenant, 0.0) + used
    notes = [f"asked for {tokens:,.0f} tokens/s, hit {_percent(hit / tokens if tokens else None)}"]
    worst = sorted(missed.items(), key=lambda item: -item[1])[:4]
    if worst:
        notes.append("missed/s: " + ", ".join(f"{why} {rate:,.0f}" for why, rate in worst))
    most = sorted(tenants.items(), key=lambda item: -item[1])[:4]
    if most:
        notes.append("tenants: " + ", ".join(f"{who} {_size(used)}" for who, used in most))
    return notes


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f}%"


def _size(size: float) -> str:
    return human_size(int(size))


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Show what running caches do, live.")
    app.command()(top)
    return run_app(app, "hexkv top", arguments)
