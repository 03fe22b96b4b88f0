"""One verb of one operator: read, executed, answered, and logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from inspect import signature
from threading import BoundedSemaphore
from typing import Any, NamedTuple

from hexkv.adapters.admin import wire
from hexkv.adapters.admin.wire import VERBS, Kind, Verb
from hexkv.adapters.net.errors import BadMessage, ConnectionBroken, OutOfTime
from hexkv.adapters.net.server.connection import Connection
from hexkv.ports import (
    Administration,
    Deadline,
    EngineClosed,
    HexKVError,
    InvalidRequest,
    Progress,
    Selection,
    StoreBusy,
    StoreError,
    WorkReport,
)

log = logging.getLogger("hexkv.admin")

_SENDING = 10.0
"""Seconds that the client may take to receive an answer."""

_TELLING = 0.25
"""Seconds between two progress messages."""


class Caller(NamedTuple):
    """The client, for the log."""

    name: str

    def __str__(self) -> str:
        return self.name


class AdminSession:
    """Executes the verb of one client, which has been accepted."""

    def __init__(self, connection: Connection, caller: Caller, verbs: BoundedSemaphore) -> None:
        """Serve *connection*; *verbs* limits the number of changing verbs at a time."""
        self._connection = connection
        self._stream = connection.stream
        self._caller = caller
        self._clock = connection.clock
        self._verbs = verbs

    def run(self, target: Callable[[], Administration | None]) -> None:
        """Receive a verb, execute it, and answer.

        Raises:
            BadMessage: the client does not speak the protocol.
            OutOfTime, ConnectionBroken: it has ended.
        """
        connection = self._connection
        kind, body = wire.receive(self._stream, wire.MAX_REQUEST, connection.opening)
        connection.engage(connection.limits.patience)
        if kind != Kind.VERB:
            raise BadMessage(f"a message of kind {kind} in place of a verb")
        name, raw = wire.read(wire.REQUEST, body)
        if (verb := VERBS.get(name)) is None:
            raise BadMessage("a verb that there is not")
        try:
            given = self._arguments(name, verb, raw)
            found = self._do(name, verb, given, target)
        except HexKVError as error:
            log.warning("admin: %s: %s: refused: %s", self._caller, name, _line(error))
            self._send(Kind.ERROR, wire.pack_error(error))
            return
        except Exception:
            log.exception("admin: %s: %s fails", self._caller, name)
            failed = StoreError(f"{name} failed: see the log of the cache")
            self._send(Kind.ERROR, wire.pack_error(failed))
            return
        answer = verb.answer.dump_json((found,))
        if len(answer) > wire.MAX_ANSWER:
            too_long = InvalidRequest("the answer is too long: ask for fewer chunks")
            self._send(Kind.ERROR, wire.pack_error(too_long))
            return
        self._send(Kind.DONE, answer)

    def _arguments(self, name: str, verb: Verb, raw: object) -> tuple[Any, ...]:
        try:
            given: tuple[Any, ...] = wire.read(verb.arguments, wire.ARGUMENTS.dump_json(raw))
        except BadMessage as error:
            raise InvalidRequest(f"{name}: {error}") from error
        return given

    def _do(
        self,
        name: str,
        verb: Verb,
        given: tuple[Any, ...],
        target: Callable[[], Administration | None],
    ) -> object:
        administration = target()
        if administration is None:
            raise EngineClosed("the cache is gone")
        said = _call_of(name, given)
        if not verb.changes:
            found = verb.call(administration, given, self._watch())
            log.info("admin: %s: %s", self._caller, said)
            return found
        if not self._verbs.acquire(blocking=False):
            raise StoreBusy("as many verbs are under way as may be: try again later")
        try:
            log.info("admin: %s: %s: begins", self._caller, said)
            found = verb.call(administration, given, self._watch())
        finally:
            self._verbs.release()
        log.warning("admin: %s: %s: %s", self._caller, said, _outcome(found))
        return found

    def _watch(self) -> Callable[[Progress], bool]:
        """Return a watch that sends progress; False once the client sends STOP, or has ended."""
        told = float("-inf")
        going = True

        def watch(progress: Progress) -> bool:
            nonlocal told, going
            if not going:
                return False
            now = self._clock.now()
            try:
                if not self._stream.quiet:
                    self._receive_stop()
                    going = False
                elif now - told >= _TELLING:
                    told = now
                    self._send(Kind.PROGRESS, wire.PROGRESS.dump_json((progress,)))
            except (OutOfTime, ConnectionBroken, BadMessage):
                going = False
            return going

        return watch

    def _receive_stop(self) -> None:
        until = Deadline.after(self._clock, _SENDING)
        kind, _ = wire.receive(self._stream, 0, until)
        if kind != Kind.STOP:
            raise BadMessage(f"a message of kind {kind} in the middle of a verb")

    def _send(self, kind: Kind, body: bytes) -> None:
        wire.send(self._stream, kind, body, Deadline.after(self._clock, _SENDING))


def _call_of(name: str, given: Sequence[object]) -> str:
    """Return a verb and its arguments for the log."""
    parameters = list(signature(getattr(Administration, name)).parameters)[1:]
    words = [f"{p}={_shown(v)}" for p, v in zip(parameters, given, strict=False) if v is not None]
    return " ".join([name, *words])


def _shown(value: object) -> str:
    """Return an argument as text, without a tier's settings, which may hold secrets."""
    match value:
        case Selection():
            parts = [
                "everything" if value.everything else "",
                f"{len(value.keys)} keys from {value.keys[0].hex()[:40]}" if value.keys else "",
                *(f"namespace {prefix.hex()}" for prefix in value.namespaces),
                f"tenant {value.tenant!r}" if value.tenant else "",
                f"oldest {value.oldest:.0%}" if value.oldest < 1 else "",
            ]
            return f"({' '.join(filter(None, parts))})"
        case dict():
            names = [f"{key}: {value[key]!r}" for key in ("store", "name") if key in value]
            return f"({', '.join(names)})"
        case tuple() if value and isinstance(value[0], bytes):
            return f"({len(value)} keys from {value[0].hex()[:40]})"
        case _:
            return repr(value)


def _outcome(found: object) -> str:
    if isinstance(found, WorkReport):
        words = [f"{found.done} of {found.chunks} chunks"]
        words += [f"{found.absent} absent"] if found.absent else []
        words += [f"{found.failed} failed"] if found.failed else []
        words += ["stopped"] if found.stopped else []
        words += [f"{tier}: {why}" for tier, why in found.left.items()]
        words += [f"{len(found.kept)} only there"] if found.kept else []
        return ", ".join(words)
    return "done" if found is None else str(found)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
