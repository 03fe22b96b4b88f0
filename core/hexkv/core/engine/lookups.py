"""Lookups of prompts: one, or many within one deadline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from hexkv.core.engine.calls import Deadlines
from hexkv.core.engine.naming import Naming
from hexkv.core.keys.prompts import Prompt
from hexkv.core.requests.accounts import Accounts
from hexkv.core.requests.checks import deadline_of
from hexkv.core.requests.pipeline import Pipeline
from hexkv.core.requests.prefix import Prefix, find_prefix, find_tail
from hexkv.core.tiers.matching import run_of
from hexkv.ports import (
    Deadline,
    InvalidTokens,
    Lookup,
    Namespace,
    Tokens,
)


class Lookups:
    """The lookups of one engine."""

    def __init__(
        self, naming: Naming, requests: Pipeline, accounts: Accounts, deadlines: Deadlines
    ) -> None:
        """Look up prompts as *naming* names them, and report each to *accounts*."""
        self._naming = naming
        self._chunks = requests.chunks
        self._accounts = accounts
        self._clock = requests.runtime.clock
        self._deadlines = deadlines

    def look(
        self, tokens: Tokens, namespace: Namespace | None, timeout: object, pin: str | None
    ) -> Lookup:
        """Return the longest prefix of *tokens* that the tiers hold; *pin* it for that owner."""
        began = self._clock.now()
        until = deadline_of(self._clock, began, timeout, self._deadlines.lookup)
        prompt = self._naming.prompt(tokens, namespace, until)
        found = find_prefix(self._chunks, prompt, until)
        if pin is not None:
            self._chunks.pin(pin, found.found.keys, self._deadlines.pin)
        return self._answer(prompt, found, began, pin)

    def look_many(
        self, prompts: Sequence[Tokens], namespace: Namespace | None, timeout: object
    ) -> list[Lookup]:
        """Return the same for each prompt. Full chunks are matched once, all of them together.

        Raises:
            InvalidTokens: *prompts* is no sequence of prompts.
        """
        began = self._clock.now()
        until = deadline_of(self._clock, began, timeout, self._deadlines.lookup)
        if not isinstance(prompts, Iterable):
            raise InvalidTokens(f"a {type(prompts).__name__} is not a sequence of prompts")
        named = [self._naming.prompt(tokens, namespace, until) for tokens in prompts]
        full = [prompt.keys[: prompt.full] for prompt in named]
        keys = list(dict.fromkeys(chain.from_iterable(full)))
        known = dict(zip(keys, self._chunks.match(keys, until), strict=True))
        answers = []
        for prompt, own in zip(named, full, strict=True):
            tiers = run_of(list(map(known.__getitem__, own)))
            found = find_tail(self._chunks, prompt, tiers, until)
            answers.append(self._answer(prompt, found, began, None))
        return answers

    def kept(self, tokens: Tokens, namespace: Namespace | None) -> Prefix:
        """Return the longest prefix of *tokens* on any tier, also those that serve no requests."""
        until = Deadline.after(self._clock, self._deadlines.lookup)
        prompt = self._naming.prompt(tokens, namespace, until)
        return find_prefix(self._chunks, prompt, until, served=False)

    def _answer(self, prompt: Prompt, found: Prefix, began: float, pin: str | None) -> Lookup:
        missing = found.missing
        why = None if missing is None else self._chunks.why_absent(missing)
        answer = Lookup(prompt.length, found.tokens, found.by_tier(), why)
        if self._accounts.watched:
            self._accounts.looked_up(prompt, answer, began, pin)
        return answer
