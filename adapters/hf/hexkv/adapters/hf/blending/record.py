"""What was measured of a model that is blended, as a file: without one, nothing is blended.

JSON, one object with the fields of :class:`BlendRecord`. A record is of one model: its name,
weights and layout of KV are compared with those of the cache.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from hexkv.adapters.hf.blending.plan import BlendPlan
from hexkv.adapters.hf.blending.selectors import SELECTORS
from hexkv.ports import InvalidRequest, Namespace

FORMAT = 1
"""Version of the fields; a record of another one is refused."""

_LARGEST = 65_536
"""Bytes of a file that is read."""


@dataclass(frozen=True, slots=True)
class BlendRecord:
    """How far blended answers of one model were from full ones, on a sample.

    Raises:
        InvalidRequest: a field is of another type, or means nothing.
    """

    model: str
    revision: str
    """Of the weights, as the cache's namespace has it."""

    layout: str
    """Of the KV, likewise: its dtype changes answers, too."""

    selector: str
    check_layer: int
    ratio: float
    kl: float
    """Mean Kullback-Leibler divergence of the blended expectation of the next token from the full
    one, over the tokens of the sample that were compared, in nats."""

    kl_spread: float
    """Standard deviation of a prompt's mean: by how much one comparison may be off."""

    bound: float
    """Of the mean, in nats: what was asked for."""

    agreement: float
    """Share of the compared tokens whose likeliest next one is the same."""

    share: float
    """Rows times layers that were computed, of those of the whole prompts."""

    prompts: int
    tokens: int
    """Compared ones, of all prompts together."""

    sample: str
    """SHA-256 of the sample's tokens, in hexadecimal."""

    versions: Mapping[str, str]
    """Of the libraries that computed it."""

    format: int = FORMAT

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kind = _KINDS.get(str(field.type), Mapping)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise InvalidRequest(f"{field.name} is {value!r:.60}, which is no {field.type}")
        if self.format != FORMAT:
            raise InvalidRequest(f"format {self.format} is not {FORMAT}: calibrate the model again")
        numbers = (self.ratio, self.kl, self.kl_spread, self.bound, self.agreement, self.share)
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise InvalidRequest(f"a measure is negative, or no number: {numbers}")
        if max(self.ratio, self.agreement, self.share) > 1 or self.check_layer < -1:
            raise InvalidRequest("a share is more than 1, or there is no such check layer")
        if self.selector not in SELECTORS:
            raise InvalidRequest(f"there is no selector {self.selector!r}")
        if any(not isinstance(text, str) for pair in self.versions.items() for text in pair):
            raise InvalidRequest("versions are texts")

    @property
    def plan(self) -> BlendPlan:
        """What was measured."""
        return BlendPlan(self.check_layer, self.ratio, self.selector)

    def fits(self, namespace: Namespace) -> bool:
        """Whether it is of the model whose KV is in *namespace*."""
        mine = (self.model, self.revision, self.layout)
        return mine == (namespace.model, namespace.revision, layout_text(namespace))

    @classmethod
    def read(cls, path: Path) -> BlendRecord | None:
        """The record in a file; ``None`` if there is no such file.

        Raises:
            InvalidRequest: it cannot be read, or holds something else.
        """
        try:
            if path.stat().st_size > _LARGEST:
                raise InvalidRequest(f"{path}: is longer than the {_LARGEST} bytes of a record")
            said: Any = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidRequest(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{path}: is no JSON") from error
        names = {field.name for field in fields(cls)}
        if not isinstance(said, dict) or said.keys() != names:
            raise InvalidRequest(f"{path}: is no record of a blended model")
        for name in _FLOATS & said.keys():
            if type(said[name]) is int:
                said[name] = float(said[name])
        try:
            return cls(**said)
        except InvalidRequest as error:
            raise InvalidRequest(f"{path}: {error}") from error

    def write(self, path: Path) -> None:
        """Put it into a file, in place of what is there, in one step.

        Raises:
            InvalidRequest: it cannot be written.
        """
        text = json.dumps(asdict(self), indent=2) + "\n"
        try:
            with NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as made:
                made.write(text)
            os.replace(made.name, path)
        except OSError as error:
            raise InvalidRequest(f"{path}: cannot be written: {error.strerror}") from error


def layout_text(namespace: Namespace) -> str:
    """What a record says of the layout of KV: canonical JSON."""
    return json.dumps(namespace.layout.describe(), sort_keys=True, separators=(",", ":"))


_KINDS: Mapping[str, type] = {"str": str, "int": int, "float": float}
_FLOATS = {field.name for field in fields(BlendRecord) if field.type == "float"}
