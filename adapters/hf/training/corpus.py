"""The text: the sources of Python's standard library, code and prose, as bytes.

Nothing is downloaded. The Python Software Foundation License (Version 2) lets anyone use them;
``models/README.md`` repeats its notice.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

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
    train, held_out = bytearray(), bytearray()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if _SKIPPED & set(name.parts) or not 0 < path.stat().st_size <= _LARGEST:
            continue
        chosen = hashlib.sha256(name.as_posix().encode()).digest()[0] < _HELD_OUT
        (held_out if chosen else train).extend(path.read_bytes())
    return Corpus(bytes(train), bytes(held_out))
