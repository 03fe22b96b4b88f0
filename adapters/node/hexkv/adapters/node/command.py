"""``hexkv node``: the node as a process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Annotated

import typer

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.server.client_check import Allowed, announce, processes_of
from hexkv.adapters.net.server.listening import Listener
from hexkv.adapters.node.memory import region_bytes
from hexkv.adapters.node.server.limits import ClientLimits
from hexkv.adapters.node.server.server import NodeServer
from hexkv.adapters.node.server.taking import Inherited, NotHandedOver, Predecessor
from hexkv.adapters.node.settings import SharedSettings
from hexkv.peers.serving.served import ServedChunks
from hexkv.plugins.cli.output import (
    Json,
    installed,
    named,
    new_app,
    print_json,
    run_app,
    size_option,
)
from hexkv.plugins.cli.serving import EndedBySignals, size_in
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.checking import check
from hexkv.plugins.configuration.config import Loaded, load
from hexkv.ports import Clock, ConfigError, Deadline

log = logging.getLogger(__name__)

SOCKET = "/run/hexkv/node.sock"

_PARTING = 60.0
"""Seconds within which a node that was taken over ends."""

_DYING = 10.0
"""Seconds within which the system ends a node that was killed and has closed its connection."""


def node(  # noqa: PLR0913
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
        str,
        size_option("Bytes that one client may lease; by default half the pool."),
    ] = "",
    under_way: Annotated[
        int, typer.Option(min=1, max=1024, help="Requests of one client at a time.")
    ] = 64,
    clients: Annotated[int, typer.Option(min=1, help="Clients at a time.")] = 64,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Go on with all that the node which runs there has."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Own one pool and its tiers, and serve them to the engines of this machine, until SIGTERM.

    Engines name the socket in their configuration (node: PATH). A process that may connect can
    read and write all of the pool's memory.
    """
    clock = SystemClock()
    with named("--mode"):
        permissions = _mode(mode)
    with named("--lease"):
        leased = size_in(lease) if lease else None
    with named("--socket"):
        if not path.is_absolute():
            raise ConfigError("must be an absolute path")
    with named("--config", config):
        given = load(config)
        if given.settings.node:
            raise ConfigError(f"{given.locate(('node',))}: a node has no node of its own")
    defaults: dict[str, object] = {"pool": {"provider": "shared"}}
    if "admin" not in given.settings.model_fields_set and installed().names("admin"):
        defaults["admin"] = {"address": f"{path.absolute()}.admin"}
    loaded = load(config, defaults=defaults)
    signals = EndedBySignals()
    with ExitStack() as opened:
        served, listener, inherited = _open(
            opened, loaded, path, permissions, clock, take_over=take_over
        )
        pool = len(served.region.buffer)
        server = NodeServer(
            served,
            listener,
            clock,
            ClientLimits(leased or pool // 2, under_way=under_way),
            allowed=Allowed(frozenset(uid or ()), frozenset(gid or ())),
            clients=clients,
            inherited=inherited,
        )
        users, groups = {os.geteuid(), *(uid or ())}, frozenset(gid or ())
        announce(str(path), "hexkv node", f"clients {processes_of(users, groups)}")
        signals.end(server.stop)
        signals.again(lambda: served.admin.reread(lambda: load(config, defaults=defaults)))
        if inherited is None:
            served.serve_admin()
            served.observe()
        else:  # the previous node serves these until it has ended
            for serve in (served.serve_admin, served.observe):
                Thread(target=_serve_late, args=(serve, clock), daemon=True).start()
        chunks = 0 if inherited is None else inherited.chunks
        said = {"socket": str(path), "pool": pool, "pid": os.getpid(), "chunks": chunks}
        said["admin"] = str(loaded.settings.admin.get("address", ""))
        if as_json:
            print_json(said)
        else:
            taken = f", {chunks} chunks in it taken over" if inherited else ""
            typer.echo(f"node {path}: a pool of {pool:,} bytes{taken}")
        signals.ready(served.health)
        server.run()
        signals.report("another process has taken its place" if server.given else "")


def _open(
    opened: ExitStack,
    loaded: Loaded,
    path: Path,
    mode: int,
    clock: Clock,
    *,
    take_over: bool,
) -> tuple[ServedChunks, Listener, Inherited | None]:
    """Return what a node serves, and its listener: new, or taken over from the running node."""
    registry = installed()
    checked = check(loaded, registry)
    place = Address(path=str(path))
    huge = isinstance(checked.pool, SharedSettings) and checked.pool.huge_pages
    size = region_bytes(loaded.settings.pool.bytes, huge_pages=huge)
    listener = None
    if take_over:
        with suppress(FileNotFoundError, ConnectionRefusedError):  # no node runs there
            taken = _taken_over(opened, loaded, path, mode, clock, size)
            if isinstance(taken, tuple):
                return taken
            listener = taken
    # Listening first, so that an error comes before memory is taken.
    if listener is None:
        with named("--socket"):
            listener = Listener(place, mode)
    opened.enter_context(listener)
    return opened.enter_context(ServedChunks(loaded, registry, clock, encodes=True)), listener, None


def _taken_over(
    opened: ExitStack, loaded: Loaded, path: Path, mode: int, clock: Clock, size: int
) -> tuple[ServedChunks, Listener, Inherited] | Listener | None:
    """Take over the running node, if this one's pool of *size* bytes fits it.

    ``None``: it does not fit, and that node has ended. A listener of this process: that node has
    died, and nothing of it is used.

    Raises:
        NotHandedOver: it has not handed over, and goes on.
        FileNotFoundError, ConnectionRefusedError: no node runs there.
    """
    place = Address(path=str(path))
    try:
        with ExitStack() as taking:
            before = taking.enter_context(Predecessor(path))
            why = before.unfit
            if not why and size != before.pool_bytes:
                why = f"its pool has {before.pool_bytes:,} bytes, this one is to have {size:,}"
            if why:
                typer.echo(
                    f"node {path}: starts empty: the one that runs does not fit: {why}", err=True
                )
                before.end()
                return None
            state = before.take()
            served = taking.enter_context(
                ServedChunks(
                    loaded,
                    installed(),
                    clock,
                    encodes=True,
                    region=before.region,
                    stores=before.stores,
                )
            )
            inherited = before.adopt(served, state)
            before.gone(served)
            inheriting = taking.enter_context(Listener(place, mode, before.listening))
            opened.push(taking.pop_all())
            return served, inheriting, inherited
    except NotHandedOver as error:
        # Without this process's descriptors, closed with the block, only the node has the lock.
        listener = _left_alone(place, mode, clock)
        if listener is None:
            raise
        typer.echo(
            f"node {path}: starts empty: the one that ran there has ended: {error}", err=True
        )
        return listener


def _left_alone(place: Address, mode: int, clock: Clock) -> Listener | None:
    """Return a listener in place of a node that is ending; ``None`` if it does not end."""
    until, pause = Deadline.after(clock, _DYING), Event()
    while True:
        try:
            return Listener(place, mode)
        except ConfigError:
            if until.expired:
                return None
            pause.wait(0.02)


def _serve_late(serve: Callable[[], None], clock: Clock) -> None:
    """Serve as soon as no other process does at the same address."""
    until, pause = Deadline.after(clock, _PARTING), Event()
    while True:
        try:
            serve()
        except ConfigError as error:
            if until.expired:
                log.warning("node: %s", error)
                return
            pause.wait(0.1)
        else:
            return


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise ConfigError(f"{text!r} is no mode: write three octal digits, such as 660")
    return mode


def run(arguments: Sequence[str]) -> int:
    """Run the command, for a plugin."""
    app = new_app("Serve one pool and its tiers to the engines of this machine.")
    app.command()(node)
    return run_app(app, "hexkv node", arguments)
