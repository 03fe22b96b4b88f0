"""Reading identities and files: how an identity names its chunks, and token ids."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from hexkv.core.admin.explain import Difference as Difference  # for commands
from hexkv.core.admin.explain import differing as differing
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import UNSEEDED, NamespaceHasher
from hexkv.core.keys.tokens import pack as pack
from hexkv.plugins.discovery.algorithms import hash_algorithm
from hexkv.ports import ConfigError, HashFunction, InvalidRequest

_HASHES = ("sha256", "blake2b", "blake3")


def fields_of(identity: str) -> Mapping[str, object]:
    """Return the fields of an identity; none if it is of another version."""
    try:
        described = json.loads(identity)
    except (ValueError, RecursionError):
        return {}
    return described if isinstance(described, dict) else {}


def model_and_layout(identity: object) -> tuple[str, str]:
    """Return model (with its revision and rank) and layout, in words."""
    if not isinstance(identity, dict):
        return str(identity), "?"
    model = str(identity.get("model", "?"))
    if revision := identity.get("revision"):
        model += f"@{revision}"
    match identity.get("parallel"):
        case [rank, int(world)] if world > 1:
            model += f" {rank}/{world}"
    layout = identity.get("layout")
    if not isinstance(layout, dict):
        return model, "?"
    groups = []
    for group in layout.get("groups", []):
        match group:
            case [layers, [*planes]]:
                shapes = {f"{heads}x{width}" for _, heads, width in planes}
                groups.append(f"{layers} layers {'+'.join(sorted(shapes))}")
    return model, f"{', '.join(groups)} {layout.get('dtype', '')}"


def hasher_of(identity: str) -> tuple[NamespaceHasher, PrefixChunker]:
    """Return the hasher and the chunker of prompts in a namespace.

    Raises:
        ConfigError: they need more than the prompt, or it is of another version.
        AdapterUnavailable: its hash is not installed.
    """
    described = fields_of(identity)
    try:
        algorithm, scheme = str(described["algorithm"]), str(described["scheme"])
    except KeyError as error:
        raise ConfigError("its frames are of another version") from error
    chunker = _chunker(scheme)
    return NamespaceHasher.of_identity(identity, algorithm_called(algorithm), chunker), chunker


def algorithm_called(name: str) -> HashFunction:
    """Return the hash that identities call *name*.

    Raises:
        ConfigError: there is none.
        AdapterUnavailable: it is not installed.
    """
    for known in _HASHES:
        if name.startswith(known):
            return hash_algorithm(known)
    raise ConfigError(f"its keys are made with the hash {name!r}, which is not known")


def tokens_in(source: str) -> list[int]:
    """Return the token ids in a file.

    Raises:
        InvalidRequest: it cannot be read, or holds something else.
    """
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text("utf-8")
        if text.lstrip().startswith("["):
            tokens = json.loads(text)
        else:
            tokens = [int(word) for word in text.split()]
    except (OSError, ValueError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) else "no list of token ids"
        raise InvalidRequest(f"{source}: {what}") from error
    if not tokens:
        raise InvalidRequest(f"{source}: holds no tokens")
    found: list[int] = tokens
    return found


def _chunker(scheme: str) -> PrefixChunker:
    """Return the chunker of an identity's prompts.

    Raises:
        ConfigError: more than the prompt is needed to cut it in the same way.
    """
    kind, _, size = scheme.removesuffix(UNSEEDED).partition("/")
    if kind != "prefix":
        raise ConfigError(f"chunks of scheme {scheme} cannot be found by a prompt alone")
    if not size.isascii() or not size.isdigit():
        raise ConfigError("its frames are of another version")
    # A tail has the same name if engines keep theirs and if they do not.
    return PrefixChunker(int(size), tail=1)
