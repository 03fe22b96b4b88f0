"""The protocol of administration: a greeting, one verb, and its result.

A connection is for one verb. After the handshake come numbered requests
(:mod:`hexkv.adapters.net.rpc`): the verb, and a message to stop it, which has no answer. Progress
is the part of the answer that is known so far (``BEGUN``); then comes the result (``DONE``) or an
error (``FAILED``). Bodies are JSON, in which keys are written in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import GenericAlias
from typing import Any

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.handshake import Handshake
from hexkv.ports import (
    Administration,
    ChunkKey,
    ClaimState,
    ConfigError,
    EngineClosed,
    Health,
    InvalidRequest,
    Member,
    NamespaceState,
    Peer,
    Progress,
    Selection,
    StoreBusy,
    StoreError,
    TierState,
    TraceStep,
    Watch,
    Why,
    WorkReport,
)

HANDSHAKE = Handshake("administration", b"hexkvad\n", 2, "N", "N")

MAX_REQUEST = 4 << 20
"""Bytes of a verb with its arguments: forty thousand keys fit."""

MAX_ANSWER = 32 << 20

MAX_KEYS = 32_768
"""Keys in one verb at most."""

_CONFIG = ConfigDict(
    strict=True,
    extra="forbid",
    val_json_bytes="hex",
    ser_json_bytes="hex",
    ser_json_inf_nan="constants",
    hide_input_in_errors=True,
)


class ClientMessage(IntEnum):
    """The kind of a client's message."""

    VERB = 1
    STOP = 2


def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=_CONFIG)


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of :class:`hexkv.ports.Administration` and its encoding."""

    arguments: TypeAdapter[Any]
    """A tuple of the method's arguments, in order and without a watch."""

    answer: TypeAdapter[Any]
    """A tuple of its result."""

    call: Callable[[Administration, tuple[Any, ...], Watch], object]
    changes: bool = True
    watched: bool = False


def _look(answer: Any, name: str, *arguments: Any) -> Verb:
    return _plain(answer, name, *arguments, changes=False)


def _plain(answer: Any, name: str, *arguments: Any, changes: bool = True) -> Verb:
    def call(target: Administration, given: tuple[Any, ...], watch: Watch) -> object:
        del watch
        return getattr(target, name)(*given)

    return Verb(_adapter(_tuple(arguments)), _adapter(tuple[answer]), call, changes)


def _watched(name: str, *arguments: Any) -> Verb:
    def call(target: Administration, given: tuple[Any, ...], watch: Watch) -> object:
        return getattr(target, name)(*given, watch)

    return Verb(_adapter(_tuple(arguments)), _adapter(tuple[WorkReport]), call, watched=True)


def _tuple(parts: tuple[Any, ...]) -> Any:
    return GenericAlias(tuple, parts)


def _rules(target: Administration, given: tuple[Any, ...], watch: Watch) -> None:
    del watch
    tier, reads, writes, promotes = given
    target.rules(tier, reads=reads, writes=writes, promotes=promotes)


_Keys = tuple[ChunkKey, ...]

VERBS: Mapping[str, Verb] = {
    "status": _look(Health, "status"),
    "steps": _look(Sequence[TraceStep], "steps"),
    "tiers": _look(Sequence[TierState], "tiers"),
    "namespaces": _look(Sequence[NamespaceState], "namespaces"),
    "lookup": _look(Sequence[str | None], "lookup", _Keys),
    "explain": _look(Sequence[Mapping[str, Why]], "explain", _Keys),
    "member": _look(Member | None, "member"),
    "listing": _look(Sequence[ChunkKey], "listing", Selection, ChunkKey | None),
    "holds": _look(Sequence[str | None], "holds", _Keys),
    "room": _look(int, "room"),
    "claim": _plain(Sequence[ClaimState], "claim", str, _Keys, float, bool, bool, changes=False),
    "fetch": _watched("fetch", _Keys, Peer),
    "give_up": _plain(WorkReport, "give_up", str, _Keys),
    "release": _plain(int, "release", str, changes=False),
    "pin": _plain(int, "pin", str, Selection, float | None),
    "unpin": _plain(int, "unpin", str),
    "freeze": _plain(None, "freeze", bool),
    "flush": _plain(bool, "flush", float | None),
    "clear": _watched("clear", Selection, tuple[str, ...] | None),
    "copy": _watched("copy", Selection, str, str),
    "move": _watched("move", Selection, str, str),
    "compress": _watched("compress", Selection, str, str),
    "drain": _watched("drain", str, str | None),
    "attach": _plain(None, "attach", dict[str, JsonValue], int | None),
    "detach": _plain(bool, "detach", str),
    "adjust": _plain(None, "adjust", dict[str, JsonValue]),
    "rules": Verb(
        _adapter(tuple[str, bool | None, str | None, bool | None]), _adapter(tuple[None]), _rules
    ),
}

REQUEST = _adapter(tuple[str, JsonValue])
ARGUMENTS = _adapter(JsonValue)
PROGRESS = _adapter(tuple[Progress])
ERROR = _adapter(tuple[str, str])

_ERRORS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (ConfigError, EngineClosed, InvalidRequest, StoreBusy, StoreError)
}


def pack_error(error: Exception) -> bytes:
    """Return the body of an answer that is an error."""
    name = next((n for n, kind in _ERRORS.items() if type(error) is kind), "")
    if not name:
        name = next((n for n, kind in _ERRORS.items() if isinstance(error, kind)), "StoreError")
    return ERROR.dump_json((name, " ".join(str(error).split())[:4096]))


def read_error(body: bytes) -> Exception:
    """Return the error that the other end raised, or the nearest one.

    Raises:
        BadMessage: it is none.
    """
    name, text = read(ERROR, body)
    return _ERRORS.get(name, StoreError)(text)


def read(adapter: TypeAdapter[Any], body: bytes) -> Any:
    """Return a body, parsed by *adapter*.

    Raises:
        BadMessage: it does not match. The message gives the place, and no part of the content.
    """
    try:
        return adapter.validate_json(body)
    except (ValidationError, ValueError, RecursionError) as error:
        raise BadMessage(_said(error)) from None


def _said(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}" if place else first["msg"]
    return "no JSON"
