"""``hexkv directory``: the directory as a process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated

import typer

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.server import DirectoryServer
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.security import read_secret
from hexkv.adapters.net.server import listen
from hexkv.adapters.net.tls import server_context
from hexkv.plugins.cli.output import Json, new_app, print_json, run_app
from hexkv.plugins.clock import SystemClock

_SWITCH = 0.0005
"""Seconds after which a thread that computes lets another one run: a question waits for no more
than that behind a snapshot."""


def serve(
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 7171,
    members: Annotated[int, typer.Option(min=1, max=1024, help="Nodes, at most.")] = 64,
    entries: Annotated[
        int, typer.Option(min=1, max=1 << 30, help="Different chunks that it knows.")
    ] = 1 << 24,
    heartbeat: Annotated[
        float, typer.Option(min=0.05, max=600, help="Seconds between two signs of life of a node.")
    ] = 1.0,
    secret_file: Annotated[
        str, typer.Option(help="File with what clients must know. Only its owner may read it.")
    ] = "",
    tls_certificate: Annotated[
        str, typer.Option(help="Encrypt: file with the server's certificate and key.")
    ] = "",
    tls_client_ca: Annotated[
        str, typer.Option(help="Ask clients for a certificate of these authorities.")
    ] = "",
    connections: Annotated[int, typer.Option(min=1, help="Connections at a time.")] = 512,
    as_json: Json = False,
) -> None:
    """Say to nodes which of them holds which chunks, until SIGTERM.

    It keeps nothing on a disk: started anew, it is told everything again by the nodes. Any address
    that other machines can reach needs --secret-file, or --tls-certificate with --tls-client-ca.
    """
    if tls_client_ca and not tls_certificate:
        raise typer.BadParameter("--tls-client-ca needs --tls-certificate")
    secret = read_secret(secret_file) if secret_file else b""
    tls = server_context(tls_certificate, tls_client_ca) if tls_certificate else None
    clock = SystemClock()
    with ExitStack() as opened:
        listener = opened.enter_context(listen(host, port))
        cell = Cell(clock, heartbeat_seconds=heartbeat, members=members, entries=entries)
        server = DirectoryServer(
            listener, cell, clock, secret=secret, tls=tls, connections=connections
        )
        sys.setswitchinterval(_SWITCH)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        place = Address(*server.address)
        if as_json:
            print_json({"address": str(place)})
        else:
            typer.echo(f"a directory is at {place}")
        server.run()


def run(arguments: Sequence[str]) -> int:
    """The command, from a plugin's point of view."""
    app = new_app("Say to other nodes which of them holds which chunks.")
    app.command()(serve)
    return run_app(app, "hexkv directory", arguments)
