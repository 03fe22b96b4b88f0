"""``hexkv directory``: the directory as a process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated

import typer

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.server import DirectoryServer
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.security import RotatedSecret, SecretSource
from hexkv.adapters.net.server.server import listen
from hexkv.adapters.net.tls import server_context
from hexkv.plugins.cli.output import (
    Json,
    installed,
    named,
    new_app,
    print_json,
    run_app,
    time_option,
)
from hexkv.plugins.cli.serving import (
    Certificate,
    ClientCa,
    Connections,
    EndedBySignals,
    Host,
    SecretFile,
    check_tls,
)
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.observing import check_observed
from hexkv.plugins.discovery.discovery import installed_version
from hexkv.plugins.observing.families import Family, Sample, text_format
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Observer

log = logging.getLogger(__name__)

_SWITCH = 0.0005
"""Seconds after which a computing thread yields to another: a query waits no longer than that
during a snapshot."""


class ObservedCell:
    """See :class:`hexkv.ports.Observed`."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def metrics(self) -> str:
        found = self._cell.health()
        return text_format(
            Family(f"hexkv_directory_{name}", kind, text, [Sample((), found[key])])
            for key, name, kind, text in _FAMILIES
        )

    def unready(self) -> str:
        return ""

    def degraded(self) -> str:
        return ""


_FAMILIES = (
    ("members", "members", "gauge", "Nodes that gave a sign of life in time."),
    ("chunks", "chunks", "gauge", "Different chunks that are known."),
    ("bytes", "table_bytes", "gauge", "Bytes of the table."),
    ("dropped", "dropped_chunks_total", "counter", "Chunks that found no room in the table."),
)


def serve(  # noqa: PLR0913
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 7171,
    members: Annotated[int, typer.Option(min=1, max=1024, help="Nodes, at most.")] = 64,
    entries: Annotated[
        int, typer.Option(min=1, max=1 << 30, help="Different chunks that it knows.")
    ] = 1 << 24,
    heartbeat: Annotated[
        float, time_option("Time between signs of life of a node.", least=0.05, most=600)
    ] = 1.0,
    secret_file: SecretFile = "",
    tls_certificate: Certificate = "",
    tls_client_ca: ClientCa = "",
    observe: Annotated[
        str, typer.Option(help="Serve numbers and state at this host:port, over HTTP.")
    ] = "",
    exposed: Annotated[
        bool, typer.Option("--exposed", help="Let other machines read --observe, without a secret.")
    ] = False,
    connections: Connections = 512,
    as_json: Json = False,
) -> None:
    """Say to nodes which of them holds which chunks, until SIGTERM.

    It keeps nothing on a disk: started anew, it gets all from the nodes again. Any address
    that other machines can reach needs --secret-file, or --tls-certificate with --tls-client-ca; on
    loopback without either, processes of this user alone are answered.
    """
    check_tls(tls_certificate, tls_client_ca)
    with named("--secret-file"):
        secret: SecretSource = RotatedSecret(secret_file) if secret_file else b""
    with named("--tls-certificate, --tls-client-ca"):
        tls = server_context(tls_certificate, tls_client_ca) if tls_certificate else None
    with named("--observe"):
        check_observed(observe, installed())
    clock, version = SystemClock(), installed_version("hexkv")
    signals = EndedBySignals()
    with ExitStack() as opened:
        with named("--host, --port"):
            listener = opened.enter_context(listen(host, port))
        cell = Cell(clock, heartbeat_seconds=heartbeat, members=members, entries=entries)
        with named("--host"):
            server = DirectoryServer(
                listener, cell, clock, secret=secret, tls=tls, connections=connections
            )
        if observe:
            settings = {"address": observe, "exposed": exposed}
            context = OpenContext(clock)
            shown: Observer = installed().open("observe", "server", settings, context)
            opened.callback(shown.close)
            shown.serve(ObservedCell(cell))
        sys.setswitchinterval(_SWITCH)
        signals.end(server.stop)
        place = Address(*server.address)
        if as_json:
            print_json({"address": str(place)})
        else:
            typer.echo(f"a directory is at {place}")
        log.info("hexkv %s starts: %d nodes, %d chunks at most", version, members, entries)
        signals.ready(cell.health)
        server.run()
        signals.report()


def run(arguments: Sequence[str]) -> int:
    """Run the command, for a plugin."""
    app = new_app("Say to other nodes which of them holds which chunks.")
    app.command()(serve)
    return run_app(app, "hexkv directory", arguments)
