"""Naming a prompt's chunks, against the bare chained hash over the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Generator

import numpy as np
import torch

from benchmarks.rig.engines import TokenArray, prompt
from benchmarks.rig.measure import Comparison, Goal, Turn
from benchmarks.rig.scale import THIN, Scale
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.tokens import TOKEN_BYTES, pack
from hexkv.ports import Namespace, Tokens

LIMIT = "bare chained SHA-256"


def bare_chain(tokens: TokenArray, chunk: int) -> Turn:
    """SHA-256 over the tokens' bytes, chunk by chunk, chained: what no key can do without.

    The bytes are cut beforehand, and the digests go nowhere.
    """
    data, size = tokens.tobytes(), chunk * TOKEN_BYTES
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    sha256 = hashlib.sha256

    def run() -> None:
        link = bytes(32)
        for piece in pieces:
            link = sha256(link + piece).digest()

    return Turn(run)


def keys(scale: Scale) -> Generator[Comparison, None, None]:
    """From tokens as callers have them to the names of all chunks."""
    tokens = prompt(scale.prompt)
    limit = bare_chain(tokens, scale.chunk)
    keyer = NamespaceHasher(Namespace("benchmark", THIN), chunker=PrefixChunker(scale.chunk))
    forms: list[tuple[str, Tokens, float | None]] = [
        ("uint32 buffer", tokens, 1.5),
        ("int64 numpy array", tokens.astype(np.int64), 1.5),
        ("int64 torch tensor", torch.from_numpy(tokens.astype(np.int64)), 1.5),
        ("list", tokens.tolist(), None),
    ]
    for form, given, bound in forms:

        def name(given: Tokens = given) -> None:
            keyer.name(pack(given))

        yield Comparison(
            f"keys: {form}", LIMIT, tokens.nbytes, Turn(name), limit, Goal("cost", bound)
        )
