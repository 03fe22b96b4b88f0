"""Texts, as bytes: the sources of Python's standard library, its documentation, headers of PyTorch.

Nothing is downloaded. The Python Software Foundation License (Version 2) lets anyone use them;
``models/README.md`` repeats its notice.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip"}
"""Not the standard library's own, or tables and fixtures rather than text."""

_HELD_OUT = 13
"""Of 256: the share of files, about 5 %, that training never sees."""

_LARGEST = 200_000
"""Bytes. Beyond that a file is mostly a table."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Bytes to learn from, and bytes of other files to be judged by."""

    train: bytes
    held_out: bytes

    @property
    def digest(self) -> str:
        """Of all of it: another Python release has another text."""
        return hashlib.sha256(self.train + self.held_out).hexdigest()


def standard_library() -> Corpus:
    """Every module of this Python's library, in the order of names; split by the names' hashes."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = sorted(root.rglob("*.py"))
    return _split(root, (p for p in found if not _SKIPPED & set(p.relative_to(root).parts)))


def headers() -> Corpus:
    """Every second header of PyTorch's tensor library: another language than Python."""
    root = Path(torch.__file__).parent / "include"
    return _split(root, sorted((root / "ATen").rglob("*.h"))[::2])


def documentation() -> Corpus:
    """Python's language reference, as ``help()`` has it: prose. The last twentieth is held out."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    end = len(text) * 19 // 20
    return Corpus(text[:end], text[end:])


def _split(root: Path, paths: Iterable[Path]) -> Corpus:
    train, held_out = bytearray(), bytearray()
    for path in paths:
        if not 0 < path.stat().st_size <= _LARGEST:
            continue
        name = path.relative_to(root).as_posix()
        chosen = hashlib.sha256(name.encode()).digest()[0] < _HELD_OUT
        (held_out if chosen else train).extend(path.read_bytes())
    return Corpus(bytes(train), bytes(held_out))
