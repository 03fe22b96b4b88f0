"""``hexkv serve``: the server as a process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from hexkv.adapters.lmserver.server import SCHEME, Server
from hexkv.adapters.lmserver.values import ServedValues
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.security import RotatedSecret, SecretSource
from hexkv.adapters.net.server.connection import Limits
from hexkv.adapters.net.server.server import listen
from hexkv.adapters.net.server.serving import Wire
from hexkv.adapters.net.tls import server_context
from hexkv.plugins.cli.output import (
    Json,
    installed,
    named,
    new_app,
    print_json,
    run_app,
    size_option,
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
    size_in,
)
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.observing import check_observed
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import OpenContext
from hexkv.ports import PAGE, Clock, frame_bytes


def serve(  # noqa: PLR0913
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 0,
    budget: Annotated[str, size_option("Bytes of all chunks together.")] = "4GiB",
    policy: Annotated[str, typer.Option(help="Which chunk goes first when it is full.")] = "lru",
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Keep chunks here instead of in memory.")
    ] = None,
    secret_file: SecretFile = "",
    tls_certificate: Certificate = "",
    tls_client_ca: ClientCa = "",
    transit: Annotated[
        str,
        size_option("Bytes of memory for chunks on their way, on top of the budget."),
    ] = "512MiB",
    largest: Annotated[
        str,
        size_option("Bytes of one chunk, and on their way on one connection."),
    ] = "128MiB",
    observe: Annotated[
        str, typer.Option(help="Serve numbers and state at this host:port, over HTTP.")
    ] = "",
    connections: Connections = 64,
    patience: Annotated[
        float, time_option("Time for the rest of a begun message.", least=0.1)
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Serve chunks over hexkv://, and over the wires of plugins, until SIGTERM.

    Any address that other machines can reach needs --secret-file, or --tls-certificate with
    --tls-client-ca; on loopback without either, processes of this user alone are served. Plugins'
    wires, such as LMCache's lm:// (pip install hexkv-lmcache), have neither: they are off as soon
    as either is given.
    """
    check_tls(tls_certificate, tls_client_ca)
    with named("--budget"):
        budget_bytes = size_in(budget)
    with named("--transit"):
        transit_bytes = size_in(transit)
    with named("--largest"):
        largest_bytes = size_in(largest)
    if frame_bytes(largest_bytes) > min(budget_bytes, transit_bytes):
        most = "the budget, or than --transit"
        raise typer.BadParameter(f"--largest with a header of {PAGE} bytes is more than {most}")
    with named("--secret-file"):
        secret: SecretSource = RotatedSecret(secret_file) if secret_file else b""
    with named("--tls-certificate, --tls-client-ca"):
        tls = server_context(tls_certificate, tls_client_ca) if tls_certificate else None
    registry, clock = installed(), SystemClock()
    with named("--policy"):
        registry.find("policy", policy)
    with named("--observe"):
        check_observed(observe, registry)
    signals = EndedBySignals()
    with ExitStack() as opened:
        # Listen first, so that a refused address fails before memory is allocated.
        with named("--host, --port"):
            listener = opened.enter_context(listen(host, port))
        wires = [] if secret or tls else _wires(registry, clock)
        schemes = [SCHEME, *(wire.scheme for wire in wires)]
        with named("--dir", directory):
            values = opened.enter_context(
                ServedValues(
                    schemes,
                    registry,
                    clock,
                    budget=budget_bytes,
                    transit=transit_bytes,
                    largest=largest_bytes,
                    policy=policy,
                    directory=directory,
                    observe=observe,
                )
            )
        with named("--host"):
            server = Server(
                listener,
                values,
                clock,
                Limits(largest_bytes, patience=patience),
                wires=wires,
                connections=connections,
                secret=secret,
                tls=tls,
            )
        signals.end(server.stop)
        _announce(server, schemes, as_json=as_json)
        signals.ready(values.health)
        server.run()
        signals.report()


def _wires(registry: Registry, clock: Clock) -> list[Wire]:
    """The wires of plugins, besides the server's own."""
    context = OpenContext(clock)
    return [wire for _, wire in registry.open_all("wire", context)]


def _announce(server: Server, schemes: Sequence[str], *, as_json: bool) -> None:
    place = Address(*server.address)
    addresses = [f"{scheme}://{place}" for scheme in schemes]
    if as_json:
        print_json({"addresses": addresses})
    else:
        typer.echo(f"serving {' and '.join(addresses)}")


def run(arguments: Sequence[str]) -> int:
    """Run the command with *arguments*; return the exit code."""
    app = new_app("Serve chunks to other machines' engines.")
    app.command()(serve)
    return run_app(app, "hexkv serve", arguments)
