"""One verb of one operator: read, executed, answered, and logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from inspect import signature
from threading import BoundedSemaphore
from typing import Any

from hexkv.adapters.admin import wire
from hexkv.adapters.admin.wire import VERBS, ClientMessage, Verb
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.asked import ClientBounds, Request
from hexkv.adapters.net.rpc.placed import PlacedSession
from hexkv.adapters.net.rpc.wire import Head, Status
from hexkv.adapters.net.server.connection import Connection
from hexkv.ports import (
    Administration,
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

_OPENING = 5.0
"""Seconds until the verb."""

_BOUNDS = ClientBounds(under_way=1, largest=wire.MAX_REQUEST, idle=_OPENING)

_TELLING = 0.25
"""Seconds between two progress messages."""


class AdminSession(PlacedSession):
    """Executes the verb of one client, which has been accepted."""

    kind = "admin"

    def __init__(
        self,
        connection: Connection,
        verbs: BoundedSemaphore,
        target: Callable[[], Administration | None],
    ) -> None:
        """Serve *connection* from *target*; *verbs* limits changing verbs at a time."""
        super().__init__(connection, _BOUNDS)
        self._verbs = verbs
        self._target = target
        self._going = True
        """False once the client requests an end, or has ended."""

        self._executes = False
        """True during a verb; an answer may be on its way when its client goes."""

    def take(self, head: Head, body: bytes) -> bool:
        if head.verb == ClientMessage.STOP:
            self._going = False
            log.info("admin: %s: wants its verb to end", self.name)
        return super().take(head, body)

    def let_go(self) -> None:
        if self._going and self._executes:
            log.info("admin: %s: is gone, its verb ends", self.name)
        self._going = False

    def respond(self, asked: Request) -> None:
        if asked.head.verb != ClientMessage.VERB:
            raise BadMessage(f"a message of kind {asked.head.verb} in place of a verb")
        name, raw = wire.read(wire.REQUEST, asked.body)
        if (verb := VERBS.get(name)) is None:
            raise BadMessage("a verb that there is not")
        try:
            given = self._arguments(name, verb, raw)
            self._executes = True
            try:
                answer = verb.answer.dump_json((self._do(name, verb, given, asked.head),))
            finally:
                self._executes = False
        except HexKVError as error:
            log.warning("admin: %s: %s: refused: %s", self.name, name, _line(error))
            self._fail(asked, error)
        except Exception:
            log.exception("admin: %s: %s fails", self.name, name)
            self._fail(asked, StoreError(f"{name} failed: see the log of the cache"))
        else:
            if len(answer) > wire.MAX_ANSWER:
                self._fail(asked, InvalidRequest("the answer is too long: ask for fewer chunks"))
            else:
                self.send(asked.head, Status.DONE, answer)

    def _fail(self, asked: Request, error: Exception) -> None:
        self.send(asked.head, Status.FAILED, wire.pack_error(error))

    def _arguments(self, name: str, verb: Verb, raw: object) -> tuple[Any, ...]:
        try:
            given: tuple[Any, ...] = wire.read(verb.arguments, wire.ARGUMENTS.dump_json(raw))
        except BadMessage as error:
            raise InvalidRequest(f"{name}: {error}") from error
        return given

    def _do(self, name: str, verb: Verb, given: tuple[Any, ...], asked: Head) -> object:
        administration = self._target()
        if administration is None:
            raise EngineClosed("the cache is gone")
        said = _call_of(name, given)
        if not verb.changes:
            found = verb.call(administration, given, self._watch(asked))
            log.info("admin: %s: %s", self.name, said)
            return found
        if not self._verbs.acquire(blocking=False):
            raise StoreBusy("as many verbs are under way as may be: try again later")
        try:
            log.info("admin: %s: %s: begins", self.name, said)
            found = verb.call(administration, given, self._watch(asked))
        finally:
            self._verbs.release()
        log.warning("admin: %s: %s: %s", self.name, said, _outcome(found))
        return found

    def _watch(self, asked: Head) -> Callable[[Progress], bool]:
        """Return a watch that sends progress; False once the client wants an end, or has ended."""
        told = float("-inf")

        def watch(progress: Progress) -> bool:
            nonlocal told
            now = self.clock.now()
            if self._going and now - told >= _TELLING:
                told = now
                self.send(asked, Status.BEGUN, wire.PROGRESS.dump_json((progress,)))
            return self._going

        return watch


def _call_of(name: str, given: Sequence[object]) -> str:
    """Return a verb and its arguments for the log."""
    parameters = list(signature(getattr(Administration, name)).parameters)[1:]
    shown = json.dumps if name == "adjust" else _shown
    words = [f"{p}={shown(v)}" for p, v in zip(parameters, given, strict=False) if v is not None]
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
