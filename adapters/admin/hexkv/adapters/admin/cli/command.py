"""``hexkv admin``: the verbs of administration on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hexkv.adapters.admin.cli import showing
from hexkv.adapters.admin.cli.choosing import Words
from hexkv.adapters.admin.cli.looking import add_looks
from hexkv.adapters.admin.cli.options import (
    Target,
    TierName,
    choosing,
    target_of,
)
from hexkv.plugins.cli.output import (
    Json,
    new_app,
    print_json,
    refuse,
    run_app,
    size_option,
    time_option,
)
from hexkv.plugins.configuration.sizes import parse_size
from hexkv.plugins.configuration.sources import MAX_FILE_BYTES, parse_yaml
from hexkv.plugins.observing.logs import LEVELS
from hexkv.ports import ConfigError, Watch, WorkReport

_Tiers = Annotated[
    list[str] | None, typer.Option("--tier", help="Only there. May be repeated; else everywhere.")
]
_Seconds = Annotated[float | None, time_option("How long at most.")]


def target(
    context: typer.Context,
    address: Annotated[
        str, typer.Argument(help="Path of a Unix socket, or host:port.", show_default=False)
    ],
    secret_file: Annotated[
        str, typer.Option(help="File with the other end's secret. Only its owner may read it.")
    ] = "",
    tls_ca: Annotated[str, typer.Option(help="Encrypt: file of authorities to trust.")] = "",
    config: Annotated[
        Path | None, typer.Option(help="A configuration whose section admin has the secret.")
    ] = None,
) -> None:
    """Look into a running cache, and act on it: a node, or an engine that serves administration.

    A command that cannot be done fails before it changes anything. Ctrl-C stops a long one before
    its next chunks.
    """
    try:
        context.obj = Target.of(address, secret_file, tls_ca, config)
    except ConfigError as error:
        refuse("--config", " ".join(str(error).split()))


@choosing()
def pin(
    context: typer.Context,
    owner: Annotated[str, typer.Argument(help="Name of the owner, to unpin by.")],
    chosen: Words,
    seconds: _Seconds = None,
    as_json: Json = False,
) -> None:
    """Keep chunks from eviction."""
    admin = target_of(context)
    meant = chosen.selection(admin)
    _count("pin", admin.pin(owner, meant, seconds), "chunks are pinned", as_json=as_json)


def unpin(
    context: typer.Context,
    owner: Annotated[str, typer.Argument(help="Name of the owner that pinned them.")],
    as_json: Json = False,
) -> None:
    """End the pins of an owner."""
    _count("unpin", target_of(context).unpin(owner), "pins ended", as_json=as_json)


def freeze(
    context: typer.Context,
    off: Annotated[bool, typer.Option("--off", help="Store again.")] = False,
    as_json: Json = False,
) -> None:
    """Store nothing, until --off."""
    target_of(context).freeze(not off)
    _done({"frozen": not off}, "frozen" if not off else "not frozen", as_json=as_json)


def flush(context: typer.Context, seconds: _Seconds = None, as_json: Json = False) -> None:
    """Wait until everything queued is written. Exit code 1 if it is not, in time."""
    done = target_of(context).flush(seconds)
    _done({"flushed": done}, "flushed" if done else "not all is written yet", as_json=as_json)
    raise typer.Exit(0 if done else 1)


@choosing()
def clear(
    context: typer.Context,
    chosen: Words,
    tier: _Tiers = None,
    as_json: Json = False,
) -> None:
    """Delete chunks, pinned ones included."""
    admin = target_of(context)
    meant = chosen.selection(admin)
    _work("clear", lambda watch: admin.clear(meant, tier, watch), as_json=as_json)


@choosing()
def copy(
    context: typer.Context,
    source: TierName,
    to: TierName,
    chosen: Words,
    as_json: Json = False,
) -> None:
    """Copy chunks from one tier to another, by default all of them."""
    admin = target_of(context)
    meant = chosen.selection(admin, otherwise=True)
    _work("copy", lambda watch: admin.copy(meant, source, to, watch), as_json=as_json)


@choosing()
def move(
    context: typer.Context,
    source: TierName,
    to: TierName,
    chosen: Words,
    as_json: Json = False,
) -> None:
    """Copy chunks to another tier, and delete from the first those readable from the second."""
    admin = target_of(context)
    meant = chosen.selection(admin, otherwise=True)
    _work("move", lambda watch: admin.move(meant, source, to, watch), as_json=as_json)


@choosing()
def compress(
    context: typer.Context,
    tier: TierName,
    serde: Annotated[str, typer.Argument(help="What encodes them; raw decodes.")],
    chosen: Words,
    as_json: Json = False,
) -> None:
    """Encode chunks where they lie, by default all of them, if that makes them smaller."""
    admin = target_of(context)
    meant = chosen.selection(admin, otherwise=True)
    _work("compress", lambda watch: admin.compress(meant, tier, serde, watch), as_json=as_json)


def drain(
    context: typer.Context,
    tier: TierName,
    to: Annotated[
        str | None, typer.Option(help="Where chunks go that are nowhere else; else the next tier.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Stop writing to a tier, and copy elsewhere the chunks that only it would keep."""
    admin = target_of(context)
    _work("drain", lambda watch: admin.drain(tier, to, watch), as_json=as_json)


def attach(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="YAML of one tier, as in a configuration; - stdin.")],
    position: Annotated[
        int | None, typer.Option(min=0, help="Before how many tiers; else the last.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a tier."""
    tier = _tier_in(file)
    target_of(context).attach(tier, position)
    name = tier.get("name", tier.get("store"))
    _done({"attached": name}, f"{name} is attached", as_json=as_json)


def detach(context: typer.Context, tier: TierName, as_json: Json = False) -> None:
    """Take a tier out and close it. What only memory holds is gone: drain it first."""
    ended = target_of(context).detach(tier)
    said = f"{tier} is detached" + ("" if ended else "; not all that was under way has ended")
    _done({"detached": tier, "ended": ended}, said, as_json=as_json)
    raise typer.Exit(0 if ended else 1)


def rules(  # noqa: PLR0913
    context: typer.Context,
    tier: Annotated[str, typer.Argument(help="Name of a tier.")] = "",
    read: Annotated[bool | None, typer.Option("--read/--no-read", help="Look there.")] = None,
    write: Annotated[str | None, typer.Option(help="Store there: all, evicted or none.")] = None,
    promote: Annotated[
        bool | None, typer.Option("--promote/--no-promote", help="Copy lower tiers' chunks there.")
    ] = None,
    budget: Annotated[str | None, size_option("The most bytes that the tier may hold.")] = None,
    quota: Annotated[
        list[str] | None,
        typer.Option(help="TENANT=SIZE: bytes of the tier for a tenant alone. May be repeated."),
    ] = None,
    retries: Annotated[
        int | None, typer.Option(help="How often a call that failed is made again.")
    ] = None,
    peer_rate: Annotated[
        str | None, typer.Option(help="Bytes per second that leave to peers; null: any number.")
    ] = None,
    compute_rate: Annotated[
        str | None, typer.Option(help="Tokens that the model computes per second; null: measured.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    as_json: Json = False,
) -> None:
    """Change settings of the running cache, those of a tier or others."""
    given: dict[str, object] = {"read": read, "write": write, "promote": promote}
    given |= {"budget": budget and _size_in("--budget", budget), "retries": retries}
    of_tier = {key: value for key, value in given.items() if value is not None}
    quotas = [_quota_in(text) for text in quota or ()]
    others: dict[str, object] = {}
    if peer_rate is not None:
        rate = None if peer_rate == "null" else _size_in("--peer-rate", peer_rate)
        others["peers"] = {"serve": {"rate": rate}}
    if compute_rate is not None:
        others["compute_rate"] = _number_in(compute_rate)
    if log_level is not None:
        if log_level not in LEVELS:
            refuse("--log-level", f"{log_level!r} is none of {', '.join(LEVELS)}")
        others["log"] = {"level": log_level}
    if (of_tier or quotas) and not tier:
        refuse("TIER", "name the tier to change")
    if tier and not (of_tier or quotas):
        refuse("rules", "name a change of the tier: --read, --write, --budget, ...; see --help")
    if not (tier or others):
        refuse("rules", "name a change: --read, --write, --budget, ...; see --help")
    if write not in (None, "all", "evicted", "none"):
        refuse("--write", f"{write!r} is none of all, evicted, none")
    admin = target_of(context)
    if of_tier.keys() <= {"read", "write", "promote"} and not (quotas or others):
        admin.rules(tier, reads=read, writes=write, promotes=promote)
    else:
        tenants = {name: {"quotas": {tier: size}} for name, size in quotas}
        admin.adjust({"tiers": {tier: of_tier} if tier else {}, "tenants": tenants, **others})
    states = [state for state in admin.tiers() if state.health.name == tier or not tier]
    if as_json:
        showing.as_json(tuple(states))
    else:
        showing.show_tiers(states)


def _quota_in(text: str) -> tuple[str, str]:
    tenant, found, size = text.rpartition("=")
    if not found:
        refuse("--quota", f"{text!r}: write TENANT=SIZE, such as red=5GiB")
    return tenant, _size_in("--quota", size)


def _size_in(option: str, text: str) -> str:
    try:
        parse_size(text)
    except ValueError as error:
        refuse(option, str(error))
    return text


def _number_in(text: str) -> float | None:
    try:
        return None if text == "null" else float(text)
    except ValueError:
        refuse("--compute-rate", f"{text!r} is no number")


def _tier_in(file: str) -> dict[str, object]:
    """Return the tier that a file describes."""
    try:
        if file == "-":
            text = sys.stdin.read(MAX_FILE_BYTES + 1)
        else:
            with Path(file).open(encoding="utf-8") as opened:
                text = opened.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        refuse("FILE", f"{file}: {error.strerror if isinstance(error, OSError) else 'no text'}")
    if len(text) > MAX_FILE_BYTES:
        refuse("FILE", f"{file}: too large for a tier")
    try:
        value, _ = parse_yaml(text, file)
    except ConfigError as error:
        refuse("FILE", str(error))
    if not isinstance(value, dict):
        refuse("FILE", f"{file}: does not hold one tier: write store: NAME, and what else it has")
    return dict(value)


def _work(verb: str, begin: Callable[[Watch], WorkReport], *, as_json: bool) -> None:
    def show(report: WorkReport) -> None:
        (showing.as_json if as_json else showing.show_report)(report)
        raise typer.Exit(0 if report.complete else 1)

    showing.watched(verb, begin, show)


def _count(verb: str, count: int, what: str, *, as_json: bool) -> None:
    _done({verb: count}, f"{count} {what}", as_json=as_json)


def _done(found: dict[str, object], said: str, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        typer.echo(said)


def run(arguments: Sequence[str]) -> int:
    """Run the command, for a plugin."""
    app = new_app("Look into a running cache, and act on it.")
    app.callback()(target)
    add_looks(app)
    for verb in (
        pin,
        unpin,
        freeze,
        flush,
        clear,
        copy,
        move,
        compress,
        drain,
        attach,
        detach,
        rules,
    ):
        app.command()(verb)
    return run_app(app, "hexkv admin", arguments)
