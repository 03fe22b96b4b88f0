"""``hexkv fleet``: all nodes of a directory, or of a list, on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hexkv.adapters.admin.cli import showing
from hexkv.adapters.admin.cli.choosing import Words
from hexkv.adapters.admin.cli.options import check_files, choosing
from hexkv.fleet.api import Fleet, FleetReport, NodeState, open_fleet
from hexkv.fleet.cli.size import size
from hexkv.plugins.cli.output import (
    Json,
    human_size,
    named,
    new_app,
    print_json,
    print_table,
    refuse,
    run_app,
    time_option,
)
from hexkv.plugins.configuration.config import load
from hexkv.plugins.observing.described import model_and_layout
from hexkv.ports import Watch

_On = Annotated[list[str] | None, typer.Option("--on", help="Only on this node. May be repeated.")]
_From = Annotated[str, typer.Argument(help="Name of a node.")]
_To = Annotated[str, typer.Argument(help="Name of a node.")]
_Evict = Annotated[
    bool, typer.Option("--evict", help="Also where other chunks have to go for them.")
]


def fleet(
    context: typer.Context,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", help="A node: the address of its administration. May be repeated."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A configuration: directory has the nodes, admin the secret."),
    ] = None,
    secret_file: Annotated[
        str, typer.Option(help="File with the nodes' secret. Only its owner may read it.")
    ] = "",
    tls_ca: Annotated[str, typer.Option(help="Encrypt: file of authorities to trust.")] = "",
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out nodes that cannot be asked.")
    ] = False,
) -> None:
    """Look into all nodes of a fleet, and act on them.

    A command that cannot be done fails before it changes anything. Ctrl-C stops a long one before
    its next chunks; the same again goes on from there.
    """
    if context.invoked_subcommand != "size":
        check_files(secret_file, tls_ca)
        with named("--config", config):
            load(config)
        context.obj = context.with_resource(
            open_fleet(
                config,
                nodes=node or (),
                secret_file=secret_file,
                tls_ca=tls_ca,
                partial=partial,
            )
        )


def nodes(context: typer.Context, as_json: Json = False) -> None:
    """Show each node, and why it could not be asked. Exit code 0 if all answer."""
    states = _of(context).nodes()
    if as_json:
        showing.as_json(tuple(states))
    else:
        print_table(
            ["node", "state", "chunks ", "used ", "room ", "life", "address", "problem"],
            map(_row, states),
        )
    raise typer.Exit(0 if not any(state.problem for state in states) else 1)


def namespaces(context: typer.Context, as_json: Json = False) -> None:
    """Show whose chunks there are, and how many on each node."""
    found = _of(context).namespaces()
    if as_json:
        showing.as_json(tuple(found))
    else:
        showing.show_namespaces(found)


@choosing("tokens", "key", "namespace")
def lookup(context: typer.Context, chosen: Words, as_json: Json = False) -> None:
    """Print how much of a prompt each node has, or the holders of some chunks.

    Exit code 0 if the nodes together have all of it.
    """
    fleet = _of(context)
    if chosen.keys:
        keys = chosen.listed()
        held = fleet.holds(keys)
        holders = [[name for name in held if held[name][at]] for at in range(len(keys))]
        rows = [(key.hex(), names) for key, names in zip(keys, holders, strict=True)]
        if as_json:
            print_json([{"key": key, "nodes": names} for key, names in rows])
        else:
            print_table(["key", "nodes"], [(key, ", ".join(names)) for key, names in rows])
        raise typer.Exit(0 if all(holders) else 1)
    if not chosen.tokens:
        refuse("--tokens", "give a prompt, or --key")
    found, whole = [], False
    for state, prompt in chosen.prompts(fleet):
        ends = (0, *prompt.ends)
        held = fleet.holds(prompt.keys)
        together = [any(column) for column in zip(*held.values(), strict=True)]
        tokens = {name: ends[_run([tier is not None for tier in t])] for name, t in held.items()}
        all_of_it = ends[_run(together)]
        unfull = ends[-1] % prompt.size
        whole = whole or (all_of_it > 0 and all_of_it >= ends[-1] - unfull)
        found.append(
            {
                "namespace": state.prefix.hex(),
                "identity": showing.identity_of(state),
                "tenant": state.tenant,
                "tokens": ends[-1],
                "hit_tokens": tokens,
                "together": all_of_it,
            }
        )
        if not as_json:
            model, layout = model_and_layout(showing.identity_of(state))
            typer.echo(
                f"{state.prefix.hex()[:12]} {model} {layout}:"
                f" {all_of_it} of {ends[-1]} tokens, over all nodes"
            )
            for name, count in sorted(tokens.items(), key=lambda item: -item[1]):
                typer.echo(f"  {name}: {count}")
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("no namespace is known")
    raise typer.Exit(0 if whole else 1)


@choosing()
def pin(
    context: typer.Context,
    owner: Annotated[str, typer.Argument(help="Name of the owner, to unpin by.")],
    chosen: Words,
    seconds: Annotated[float | None, time_option("How long at most.")] = None,
    on: _On = None,
    as_json: Json = False,
) -> None:
    """Keep chunks from eviction wherever they are."""
    fleet = _of(context)
    _report(fleet.pin(owner, chosen.selection(fleet), seconds, on), "pinned", as_json=as_json)


def unpin(
    context: typer.Context,
    owner: Annotated[str, typer.Argument(help="Name of the owner that pinned them.")],
    on: _On = None,
    as_json: Json = False,
) -> None:
    """End the pins of an owner."""
    _report(_of(context).unpin(owner, on), "unpinned", as_json=as_json)


@choosing()
def clear(context: typer.Context, chosen: Words, on: _On = None, as_json: Json = False) -> None:
    """Delete chunks everywhere, pinned ones included."""
    fleet = _of(context)
    meant = chosen.selection(fleet)
    _work("clear", lambda watch: fleet.clear(meant, on, watch), as_json=as_json)


@choosing()
def compress(
    context: typer.Context,
    tier: Annotated[str, typer.Argument(help="Name of a tier, which each node has.")],
    serde: Annotated[str, typer.Argument(help="What encodes them; raw decodes.")],
    chosen: Words,
    on: _On = None,
    as_json: Json = False,
) -> None:
    """Encode chunks where they lie, by default all of them, if that makes them smaller."""
    fleet = _of(context)
    meant = chosen.selection(fleet, otherwise=True)
    _work("compress", lambda watch: fleet.compress(meant, tier, serde, on, watch), as_json=as_json)


@choosing()
def copy(
    context: typer.Context,
    source: _From,
    to: _To,
    chosen: Words,
    evict: _Evict = False,
    as_json: Json = False,
) -> None:
    """Copy chunks from one node to another, by default all of them."""
    fleet = _of(context)
    meant = chosen.selection(fleet, otherwise=True)
    _work("copy", lambda watch: fleet.copy(meant, source, to, watch, evict=evict), as_json=as_json)


@choosing()
def move(
    context: typer.Context,
    source: _From,
    to: _To,
    chosen: Words,
    evict: _Evict = False,
    as_json: Json = False,
) -> None:
    """Copy chunks to another node, and delete from the first those read back at the second."""
    fleet = _of(context)
    meant = chosen.selection(fleet, otherwise=True)
    _work("move", lambda watch: fleet.move(meant, source, to, watch, evict=evict), as_json=as_json)


def drain(
    context: typer.Context,
    node: _From,
    to: Annotated[
        list[str] | None, typer.Option(help="A node for its chunks. May be repeated; else any.")
    ] = None,
    hold: Annotated[float, time_option("Time that the others keep its chunks.")] = 600.0,
    evict: _Evict = False,
    as_json: Json = False,
) -> None:
    """Freeze a node, and copy to others what only it has. Then it may be ended.

    It stays frozen; hexkv admin ADDRESS freeze --off has it store again.
    """
    fleet = _of(context)
    _work(
        "drain",
        lambda watch: fleet.drain(node, to, watch, hold=hold, evict=evict),
        as_json=as_json,
    )


def _of(context: typer.Context) -> Fleet:
    found: Fleet = context.obj
    return found


def _run(there: Sequence[bool]) -> int:
    """Return the number of true values before the first false one."""
    return next((at for at, here in enumerate(there) if not here), len(there))


def _row(state: NodeState) -> Sequence[str]:
    member, health = state.member, state.health
    life = "" if member is None else str(member.generation)
    if health is None:
        return state.name, "", "", "", "", life, state.address, state.problem
    return (
        state.name,
        f"{health.state}{', frozen' if health.frozen else ''}",
        ", ".join(f"{it.name}: {'?' if it.chunks is None else it.chunks}" for it in health.tiers),
        ", ".join(f"{it.name}: {human_size(it.used_bytes or 0)}" for it in health.tiers),
        human_size(state.room) if state.room < 1 << 60 else "any",
        life,
        state.address,
        state.problem,
    )


def _work(verb: str, begin: Callable[[Watch], FleetReport], *, as_json: bool) -> None:
    showing.watched(verb, begin, lambda report: _report(report, "done", as_json=as_json))


def _report(report: FleetReport, what: str, *, as_json: bool) -> None:
    if as_json:
        showing.as_json(report)
    else:
        words = [f"{report.done} of {report.chunks} chunks {what}"]
        words += [f"{report.absent} were not there"] if report.absent else []
        words += [f"{report.busy} are being moved by another call"] if report.busy else []
        words += [f"{report.failed} failed"] if report.failed else []
        words += ["stopped before the end"] if report.stopped else []
        typer.echo("; ".join(words))
        _lines(report.nodes, lambda count: str(count))
        _lines(report.problems, lambda problem: problem)
        showing.show_kept(report.kept)
    raise typer.Exit(0 if report.complete else 1)


def _lines(named: Mapping[str, object], text: Callable[..., str]) -> None:
    for name, value in named.items():
        typer.echo(f"  {name}: {text(value)}")


def run(arguments: Sequence[str]) -> int:
    """Run the command, for a plugin."""
    app = new_app("Look into all nodes of a fleet, and act on them.")
    app.callback()(fleet)
    for verb in (
        nodes,
        namespaces,
        lookup,
        pin,
        unpin,
        clear,
        compress,
        copy,
        move,
        drain,
        size,
    ):
        app.command()(verb)
    return run_app(app, "hexkv fleet", arguments)
