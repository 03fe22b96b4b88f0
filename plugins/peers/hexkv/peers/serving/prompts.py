"""Prompts of other processes, whose keys are checked against their tokens."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.plugins.observing.described import hasher_of
from hexkv.ports import Bounds, HexKVError, NamedPrompt, PromptSink

_NAMESPACES = 256
"""Namespaces of other processes' prompts whose hashers are kept."""


class CheckedPrompts:
    """Passes on another process's prompts, if these tokens name their keys."""

    def __init__(self, sink: PromptSink) -> None:
        self._sink = sink
        self._lock = Lock()
        self._hashers: OrderedDict[str, NamespaceHasher | None] = OrderedDict()

    def named(self, prompt: NamedPrompt) -> bool:
        """Pass on *prompt*. False if its keys are those of other tokens, or cannot be checked."""
        hasher = self._hasher(prompt.identity)
        if hasher is None:
            return False
        # An empty chunk represents the one before.
        known = () if prompt.after is None else (prompt.after,)
        ends = (*(0 for _ in known), *prompt.ends)
        starts = (*(0 for _ in known), 0, *prompt.ends[:-1])
        keys = hasher.name(prompt.tokens, None, known, Bounds(starts, ends))
        if keys[len(known) :] != list(prompt.keys):
            return False
        self._sink.named(prompt)
        return True

    def _hasher(self, identity: str) -> NamespaceHasher | None:
        with self._lock:
            if identity in self._hashers:
                return self._hashers[identity]
        try:
            hasher, _ = hasher_of(identity)
        except HexKVError:
            hasher = None
        with self._lock:
            self._hashers[identity] = hasher
            if len(self._hashers) > _NAMESPACES:
                self._hashers.popitem(last=False)
        return hasher
