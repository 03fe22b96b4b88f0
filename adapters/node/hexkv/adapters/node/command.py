"""``hexkv node``: the node as a process."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hexkv.adapters.node.server import Allowed, Listener, NodeServer
from hexkv.adapters.node.session import Limits
from hexkv.plugins.cli.output import Json, installed, new_app, print_json, run_app
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.config import load
from hexkv.plugins.schema import parse_size
from hexkv.plugins.served import ServedChunks
from hexkv.ports import ConfigError

SOCKET = "/run/hexkv/node.sock"


def node(
    config: Annotated[
        Path | None, typer.Option(help="The configuration: pool, tiers, tenants.")
    ] = None,
    path: Annotated[Path, typer.Option("--socket", help="Where to listen.")] = Path(SOCKET),
    mode: Annotated[str, typer.Option(help="The socket's mode, octal.")] = "600",
    uid: Annotated[
        list[int] | None, typer.Option(help="A user that may connect, beside the node's own.")
    ] = None,
    gid: Annotated[
        list[int] | None, typer.Option(help="A group whose processes may connect.")
    ] = None,
    lease: Annotated[
        str, typer.Option(help="Bytes that one client may lease; by default half the pool.")
    ] = "",
    under_way: Annotated[
        int, typer.Option(min=1, max=1024, help="Requests of one client at a time.")
    ] = 64,
    clients: Annotated[int, typer.Option(min=1, help="Clients at a time.")] = 64,
    as_json: Json = False,
) -> None:
    """Own one pool and its tiers, and serve them to the engines of this machine, until SIGTERM.

    Engines name the socket in their configuration (node: PATH). Whoever may connect can read and
    write all of the pool's memory.
    """
    clock = SystemClock()
    # Listening first: what is refused is refused before memory is taken.
    with Listener(path, _mode(mode)) as listener:
        given = load(config)
        if given.settings.node:
            raise ConfigError(f"{given.locate(('node',))}: a node has no node of its own")
        loaded = load(config, defaults={"pool": {"provider": "shared"}})
        with ServedChunks(loaded, installed(), clock, encodes=True) as served:
            pool = len(served.region.buffer)
            server = NodeServer(
                served,
                listener,
                clock,
                Limits(_bytes(lease) if lease else pool // 2, under_way),
                allowed=Allowed(frozenset(uid or ()), frozenset(gid or ())),
                clients=clients,
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: server.stop())
            if as_json:
                print_json({"socket": str(path), "pool": pool, "pid": os.getpid()})
            else:
                typer.echo(f"node {path}: a pool of {pool:,} bytes")
            server.run()


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise ConfigError(f"{text!r} is no mode: write three octal digits, such as 660")
    return mode


def _bytes(text: str) -> int:
    try:
        size = int(str(parse_size(text)))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if size < 1:
        raise ConfigError(f"{text!r} is no size: there must be at least one byte")
    return size


def run(arguments: Sequence[str]) -> int:
    """The command, from a plugin's point of view."""
    app = new_app("Serve one pool and its tiers to the engines of this machine.")
    app.command()(node)
    return run_app(app, "hexkv node", arguments)
