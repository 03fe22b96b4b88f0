"""Selects chunks by a command line: namespaces, keys, tokens, a tenant, a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hexkv.plugins.cli.output import refuse
from hexkv.plugins.observing.described import hasher_of, pack, tokens_in
from hexkv.ports import (
    KEY_BYTES,
    AdapterUnavailable,
    ChunkKey,
    ConfigError,
    InvalidRequest,
    NamespaceState,
    Selection,
)


class Known(Protocol):
    """A source of namespaces: a cache's administration, or a fleet."""

    def namespaces(self) -> Sequence[NamespaceState]:
        """See :class:`hexkv.ports.Administration`."""
        ...


class PromptKeys(NamedTuple):
    """The chunks of a prompt, in order; the last may be shorter than the others."""

    keys: Sequence[ChunkKey]
    ends: Sequence[int]
    """Token position at which each ends."""

    size: int
    """Tokens of a whole chunk."""


def _prompt_keys(identity: str, tokens: Sequence[int]) -> PromptKeys:
    """Name the chunks of a prompt as the engines of *identity* do.

    Raises:
        InvalidTokens: they are none.
        ConfigError, AdapterUnavailable: as :func:`hasher_of`.
    """
    keyer, chunker = hasher_of(identity)
    packed = pack(tokens)
    return PromptKeys(keyer.name(packed), keyer.cut(packed).ends, chunker.size)


@dataclass(frozen=True, slots=True)
class Words:
    """The values of the options that choose chunks."""

    tokens: str = ""
    keys: Sequence[str] = ()
    namespaces: Sequence[str] = ()
    tenant: str = ""
    everything: bool = False
    oldest: str = ""

    def selection(self, admin: Known, *, otherwise: bool = False) -> Selection:
        """Return the chosen chunks; if *otherwise*, all of them when no option is given."""
        oldest = part_of(self.oldest)
        given = {
            "--tokens": self.tokens,
            "--key": self.keys,
            "--tenant": self.tenant,
            "--everything": self.everything,
        }
        said = [flag for flag, value in given.items() if value]
        if len(said) > 1:
            refuse(said[1], f"{said[0]} has chosen already")
        if self.tokens:
            (prompt,) = self.prompts(admin, one=True)
            return Selection(keys=tuple(prompt[1].keys), oldest=oldest)
        if self.keys:
            return Selection(keys=tuple(map(key_of, self.keys)), oldest=oldest)
        if self.namespaces:
            if said:
                refuse("--namespace", f"{said[0]} has chosen already")
            states = admin.namespaces()
            chosen = [one_of(states, text).prefix for text in self.namespaces]
            return Selection(namespaces=tuple(dict.fromkeys(chosen)), oldest=oldest)
        if self.tenant:
            return Selection(tenant=self.tenant, oldest=oldest)
        if not (self.everything or otherwise):
            refuse("--everything", "or say which chunks: --tokens, --key, --namespace, --tenant")
        return Selection(everything=True, oldest=oldest)

    def prompts(
        self, admin: Known, *, one: bool = False
    ) -> Iterator[tuple[NamespaceState, PromptKeys]]:
        """Yield the prompt's keys in each namespace that may be meant."""
        try:
            tokens = tokens_in(self.tokens)
        except InvalidRequest as error:
            refuse("--tokens", str(error))
        states = admin.namespaces()
        if self.namespaces:
            states = [one_of(states, text) for text in self.namespaces]
        states = [state for state in states if state.identity]
        if one and len(states) != 1:
            names = ", ".join(state.prefix.hex()[:12] for state in states) or "none"
            refuse("--namespace", f"a prompt has other keys in each namespace: name one of {names}")
        for state in states:
            try:
                yield state, _prompt_keys(state.identity, tokens)
            except InvalidRequest as error:
                refuse("--tokens", str(error))
            except (ConfigError, AdapterUnavailable) as error:
                if one or self.namespaces:
                    refuse("--namespace", f"{state.prefix.hex()[:12]}: {error}")

    def listed(self) -> list[ChunkKey]:
        """Return the keys given by ``--key``."""
        return list(map(key_of, self.keys))


def key_of(text: str) -> ChunkKey:
    """Return a key from its hexadecimal digits."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        refuse("--key", f"{text[:100]!r} is no key: {2 * KEY_BYTES} hexadecimal digits")
    return ChunkKey(key)


def one_of(states: Sequence[NamespaceState], text: str) -> NamespaceState:
    """Return the namespace whose prefix begins with the digits *text*."""
    found = [state for state in states if state.prefix.hex().startswith(text.lower())]
    if len(found) != 1:
        there = ", ".join(state.prefix.hex()[:12] for state in states) or "none"
        count = f"{len(found)} namespaces begin" if found else "no namespace begins"
        refuse("--namespace", f"{count} with {text[:40]!r}; there are: {there}")
    return found[0]


def part_of(text: str) -> float:
    """Return a part in (0, 1], from ``50%`` or ``0.5``; all for an empty text."""
    if not text:
        return 1.0
    try:
        part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        part = 0.0
    if not 0 < part <= 1:
        refuse("--oldest", f"{text!r} is no part: write 50% or 0.5")
    return part
