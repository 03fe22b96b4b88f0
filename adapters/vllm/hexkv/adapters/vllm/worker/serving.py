"""A rank's answers to the scheduler: it looks up KV, and releases it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

from hexkv.adapters.vllm.configuration.lora import Adapters
from hexkv.adapters.vllm.lookup.under_way import PushTarget, UnderWay
from hexkv.adapters.vllm.messages import Scope
from hexkv.adapters.vllm.worker.rank_cache import RankLookups
from hexkv.ports import SHARED_OWNER, Cleared, HexKVError, InvalidRequest, Namespace, traced

_SCOPES = 256

_REMEMBERED = 4096
"""Requests that were released: a question about one may still be on its way."""


_DROPPING = 5.0
"""Seconds for saves under way to end before a clear."""

_SETTLING = 0.2
"""Seconds that a question waits for the first of the requests that wait for other engines."""

_JOINED = "joined "
"""Prefix of a text that is made of two parts."""


class Scopes:
    """Namespaces of requests, from the model's and the properties of the request.

    Args:
        base: the model's.
        adapters: those that this worker has loaded; without, requests with one have no KV.
    """

    def __init__(self, base: Namespace, adapters: Adapters | None = None) -> None:
        self._base = base
        self._adapters = adapters
        self._made = lru_cache(_SCOPES)(self._make)

    def namespace(self, scope: Scope) -> Namespace | None:
        """The namespace of a request; ``None`` while the weights it runs with are not known."""
        lora: str | None = ""
        if scope.adapter or scope.lora:
            known = self._adapters
            lora = None if known is None else known.identity(scope.lora, scope.adapter)
        return None if lora is None else self._made(scope, lora)

    def _make(self, scope: Scope, lora: str) -> Namespace:
        base = self._base
        extra = dict(base.extra)
        if scope.inputs:
            extra["inputs"] = scope.inputs
        return replace(
            base,
            lora=joined(base.lora, lora),
            salt=joined(base.salt, scope.salt),
            extra=tuple(sorted(extra.items())),
        )


def joined(own: str, asked: str) -> str:
    """Join the operator's text for the instance and a client's text for the request.

    Two pairs with a client's part never give the same, for any content: the length of
    the first part goes before both. A pair with one part gives that part: a tenant is known
    by its salt, wherever it is set.
    """
    if asked and (own or asked.startswith(_JOINED)):
        return f"{_JOINED}{len(own)}:{own}{asked}"
    return own or asked


class Handing(NamedTuple):
    """How a prompt's KV is kept for the engine that goes on with it."""

    rank: int = 0
    seconds: float = 60.0
    removes: bool = False
    """True if chunks that were made for this engine alone are deleted once it has them."""

    shards: int = 0
    """The number of shards of a rank's KV, each of which is pinned by itself; 0: it is not cut."""

    def owner(self, hold: str) -> str:
        """The owner of the pin with the name *hold*."""
        return f"{SHARED_OWNER}{hold}" if self.shards else f"{SHARED_OWNER}{hold} {self.rank}"


class LookupServer:
    """Answers the scheduler's questions about one engine. Called from several threads."""

    def __init__(
        self,
        engine: RankLookups,
        scopes: Scopes,
        *,
        prefetch: bool = True,
        under_way: UnderWay | None = None,
        chunk: int = 0,
        handing: Handing = Handing(),  # noqa: B008 - frozen
        follows: Callable[[], bool] = lambda: False,
        weights: str = "",
    ) -> None:
        """Serve *engine*, whose chunks have *chunk* tokens; *under_way* where others share it.

        A rank that *follows* another one receives the KV that the other finds; it looks up nothing.
        *weights* is the digest of the model's, as they were loaded at the start.
        """
        self._engine = engine
        self._under_way = under_way
        self._chunk = chunk
        self._handing = handing
        self._each = handing.shards or 1
        self._follows = follows
        self._scopes = scopes
        self._prefetch = prefetch
        self._weights = weights
        self._left: dict[str, int] = {}
        self._lock = Lock()
        self.before_clear: Callable[[float], None] = lambda _: None
        """Ends the saves under way, in some seconds: no chunk may appear behind a clear."""

    def __call__(self, question: Mapping[str, object], tokens: memoryview) -> Mapping[str, object]:
        match question.get("op"), question.get("id"):
            case "find", str(request):
                scope, waits = _scope(question.get("scope")), question.get("waits") is True
                node, rate = str(question.get("node") or ""), question.get("rate")
                self._engine.computes(rate if isinstance(rate, float) and rate > 0 else None)
                with traced(str(question.get("parent") or "")):
                    found = self._find(request, scope, tokens.cast("I"), node, waits=waits)
                # Threads overtake each other: this one may hold a request that was released.
                if self._left.get(request, 0) > _number(question):
                    self.release(request)
                return found
            case "release", str(request):
                self._remember(request, _number(question))
                if hold := question.get("hold"):
                    self._engine.unpin(self._handing.owner(str(hold)))
                return {"prefetched": self.release(request)}
            case "announce", str(request):
                scope, target = _scope(question.get("scope")), self._target(question)
                name = self._announce(request, scope, tokens.cast("I"), target)
                if self._left.get(_announced(request), 0) > _number(question):
                    self.withdraw(request)
                return {"node": name}
            case "withdraw", str(request):
                self._remember(_announced(request), _number(question))
                self.withdraw(request)
                return {}
            case "settled", _:
                under_way = self._under_way
                return {"settled": under_way.settled(_SETTLING) if under_way else []}
            case "clear", _:
                if question.get("tiers"):
                    self.before_clear(_DROPPING)
                return cleared(self._engine, question)
            case "weights", _:
                return {"weights": self._weights}
        raise InvalidRequest(f"no such question: {question.get('op')!r}")

    def release(self, request: str) -> bool:
        """Release the KV held for *request*. Return True if a prefetch was under way."""
        if self._under_way is not None:
            self._under_way.forget(request)
        self._engine.unpin(request)
        return self._engine.cancel(request)

    def withdraw(self, request: str) -> None:
        """Withdraw the announcement of *request*."""
        if self._under_way is not None:
            self._under_way.withdraw(request)

    def _announce(self, request: str, scope: Scope, tokens: memoryview, target: PushTarget) -> str:
        namespace = self._scopes.namespace(scope)
        if self._under_way is None or namespace is None:
            return ""
        keys = self._engine.chunk_keys(tokens, namespace=namespace)
        return self._under_way.announce(request, keys, target)

    def _target(self, question: Mapping[str, object]) -> PushTarget:
        match question.get("node"), question.get("hold"), question.get("seconds"):
            case str(node), str(hold), float(seconds) if node:
                owner = self._handing.owner(hold) if hold and seconds else ""
                return PushTarget(node, owner, seconds)
        return PushTarget()

    def _remember(self, request: str, number: int) -> None:
        with self._lock:
            self._left[request] = number
            if len(self._left) > _REMEMBERED:
                del self._left[next(iter(self._left))]

    def _find(
        self, request: str, scope: Scope, tokens: memoryview, node: str, *, waits: bool
    ) -> Mapping[str, object]:
        namespace = self._scopes.namespace(scope)
        if namespace is None:
            return {"hit": 0, "tiers": {}}
        if self._follows():
            return {"follows": True}
        found = self._engine.lookup(tokens, pin=request, namespace=namespace)
        if self._under_way is not None:
            self._under_way.forget(request)  # it looks again
        while waits and self._under_way is not None and found.hit_tokens < len(tokens):
            keys = self._engine.chunk_keys(tokens, namespace=namespace)
            behind = keys[found.hit_tokens // self._chunk * self._each :]
            if self._under_way.watch(request, behind, node, first=self._each):
                return {"hit": found.hit_tokens, "tiers": dict(found.tiers), "coming": True}
            # KV that was under way a moment ago may be here by now.
            before = found.hit_tokens
            found = self._engine.lookup(tokens, pin=request, namespace=namespace)
            if found.hit_tokens <= before:
                break
        if found.hit_tokens and self._prefetch:
            self._engine.prefetch(request, tokens[: found.hit_tokens], namespace=namespace)
        why = "" if found.missing is None else found.missing.value
        return {"hit": found.hit_tokens, "tiers": dict(found.tiers), "why": why}


def cleared(engine: RankLookups, question: Mapping[str, object]) -> Mapping[str, object]:
    """Answer a question that deletes a model's chunks on the tiers that it names."""
    named = question.get("tiers")
    tiers = [str(name) for name in named] if isinstance(named, list) else []
    try:
        done = engine.clear(tiers=tiers) if tiers else Cleared(0)
    except HexKVError as error:  # a tier that an operator has detached
        done = Cleared(0, left={tiers[0]: str(error)})
    return {"chunks": done.chunks, "left": dict(done.left)}


def _announced(request: str) -> str:
    """The name under which the withdrawal of a request's announcement is remembered."""
    return f"announced {request}"


def _number(question: Mapping[str, object]) -> int:
    number = question.get("n")
    return number if isinstance(number, int) else 0


def _scope(given: object) -> Scope:
    match given:
        case [str(lora), str(salt), str(inputs), int(adapter)]:
            return Scope(lora, salt, inputs, adapter)
    raise InvalidRequest("a scope is three words and a number")
