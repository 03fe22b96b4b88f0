"""The input of both stages of the demo, and the lines in which they report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

Event = Literal["step", "acknowledged", "measured", "refused"]

CHUNK = 256
"""Tokens of a chunk; hits are whole numbers of them."""

TRAINED = "trained on text, comes with hexkv-hf"
"""The name of the demo's own model."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """One demo."""

    model: str
    """Name or path of a transformers model; empty for the one that comes along."""

    text: str
    """File whose beginning is the long prefix."""

    chunks: str
    """Directory of the disk tier."""

    tokens: int
    """Length of the prefix."""

    new_tokens: int = 32

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DemoPlan:
        return cls(**json.loads(text))

    @property
    def reusable(self) -> int:
        """Tokens of the prefix that fill whole chunks: a hit must have all of them."""
        return self.tokens // CHUNK * CHUNK


def report(event: Event, **values: object) -> None:
    """Report to the parent."""
    print(json.dumps({"event": event, **values}), flush=True)  # noqa: T201  # it reads a pipe


def parse(line: str) -> Mapping[str, object]:
    """The report of a stage; empty for a line that a library printed."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
