"""What a rank answers to the scheduler: what is cached, and that it lets go of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from threading import Lock

from hexkv.adapters.vllm.messages import Scope
from hexkv.ports import InvalidRequest, Namespace, PrefixCache, StoreUnreachable

_SCOPES = 256

_FLUSH_SECONDS = 5.0

_REMEMBERED = 4096
"""Requests that were let go of: a question about one may still be on its way."""


class Scopes:
    """Namespaces of requests, from the model's and what is special about the request."""

    def __init__(self, base: Namespace) -> None:
        self._base = base
        self.namespace = lru_cache(_SCOPES)(self._make)

    def _make(self, scope: Scope) -> Namespace:
        base = self._base
        if scope == Scope():
            return base
        # Both may be set: by the operator for the instance, by the client for the request.
        salt = "\n".join(part for part in (base.salt, scope.salt) if part)
        lora = "\n".join(part for part in (base.lora, scope.lora) if part)
        extra = dict(base.extra)
        if scope.inputs:
            extra["inputs"] = scope.inputs
        return replace(base, lora=lora, salt=salt, extra=tuple(sorted(extra.items())))


class Desk:
    """Answers the scheduler's questions about one engine. Called from several threads."""

    def __init__(self, engine: PrefixCache, scopes: Scopes, *, prefetch: bool = True) -> None:
        self._engine = engine
        self._scopes = scopes
        self._prefetch = prefetch
        self._left: dict[str, int] = {}
        self._lock = Lock()

    def __call__(self, question: Mapping[str, object], tokens: memoryview) -> Mapping[str, object]:
        match question.get("op"), question.get("id"):
            case "find", str(request):
                found = self._find(request, _scope(question.get("scope")), tokens.cast("I"))
                # Threads overtake each other: this one may hold what was let go of meanwhile.
                if self._left.get(request, 0) > _number(question):
                    self.release(request)
                return found
            case "release", str(request):
                self._remember(request, _number(question))
                return {"prefetched": self.release(request)}
            case "clear", _:
                # What is queued is stored first, for whatever is emptied does not know of it.
                flushed = self._engine.flush(_FLUSH_SECONDS)
                chunks = self._engine.clear()
                if not flushed:
                    raise StoreUnreachable("what is being stored takes too long, and may stay")
                return {"chunks": chunks}
        raise InvalidRequest(f"no such question: {question.get('op')!r}")

    def release(self, request: str) -> bool:
        """Let go of what is held for *request*. Whether something was being prefetched."""
        self._engine.unpin(request)
        return self._engine.cancel(request)

    def _remember(self, request: str, number: int) -> None:
        with self._lock:
            self._left[request] = number
            if len(self._left) > _REMEMBERED:
                del self._left[next(iter(self._left))]

    def _find(self, request: str, scope: Scope, tokens: memoryview) -> Mapping[str, object]:
        namespace = self._scopes.namespace(scope)
        found = self._engine.lookup(tokens, pin=request, namespace=namespace)
        if found.hit_tokens and self._prefetch:
            self._engine.prefetch(request, tokens[: found.hit_tokens], namespace=namespace)
        return {"hit": found.hit_tokens, "tiers": dict(found.tiers)}


def _number(question: Mapping[str, object]) -> int:
    number = question.get("n")
    return number if isinstance(number, int) else 0


def _scope(given: object) -> Scope:
    if isinstance(given, list) and len(given) == 3 and all(isinstance(p, str) for p in given):
        return Scope(*given)
    raise InvalidRequest("a scope is three words")
