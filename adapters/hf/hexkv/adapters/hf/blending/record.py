"""The measurements of a model that is blended, as a file: without one, nothing is blended.

JSON, one object with the fields of :class:`BlendRecord`. A record is of one model: a digest of
its name, weights, adapter and layout of KV is compared with that of the cache. Nothing protects a
record from users that may write the file; the gate detects one that promises too much.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hexkv.adapters.hf.blending.plan import BlendPlan
from hexkv.ports import InvalidRequest, Namespace

FORMAT = 2
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
    """The revision of the weights, as the cache's namespace has it."""

    identity: str
    """:func:`identity_of` the cache's namespace."""

    selector: str
    check_layer: int
    ratio: float
    kl: float
    """Mean Kullback-Leibler divergence of the blended expectation of the next token from the full
    one, over the tokens of the sample that were compared, in nats."""

    kl_quantile: float
    """The divergence of a single token that one in ten is beyond, or fewer."""

    bound: float
    """The requested bound of the mean, in nats. Not less than *kl*."""

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
    """The versions of the libraries that computed it."""

    format: int = FORMAT

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kind = _KINDS.get(str(field.type), Mapping)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise InvalidRequest(f"{field.name} is {value!r:.60}, which is no {field.type}")
        if self.format != FORMAT:
            raise InvalidRequest(f"format {self.format} is not {FORMAT}: calibrate the model again")
        numbers = (self.ratio, self.kl, self.kl_quantile, self.bound, self.agreement, self.share)
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise InvalidRequest(f"a measure is negative, or no number: {numbers}")
        if max(self.ratio, self.agreement, self.share) > 1 or self.check_layer < -1:
            raise InvalidRequest("a share is more than 1, or there is no such check layer")
        if not self.kl <= self.bound > 0 or min(self.prompts, self.tokens) < 1:
            raise InvalidRequest(f"kl {self.kl} is above the bound {self.bound}, or of no prompt")
        if not (_DIGEST.fullmatch(self.identity) and _DIGEST.fullmatch(self.sample)):
            raise InvalidRequest("identity and sample are SHA-256 in hexadecimal")
        self.plan.chosen_by()
        if any(not isinstance(text, str) for pair in self.versions.items() for text in pair):
            raise InvalidRequest("versions are texts")

    @property
    def plan(self) -> BlendPlan:
        """The plan that was measured."""
        return BlendPlan(self.check_layer, self.ratio, self.selector)

    def fits(self, namespace: Namespace) -> bool:
        """True if it is of the model whose KV is in *namespace*."""
        layers = len(namespace.layout.planes)
        return self.identity == identity_of(namespace) and self.check_layer < layers

    @classmethod
    def read(cls, path: Path) -> BlendRecord | None:
        """The record in a file; ``None`` if there is no such file.

        Raises:
            InvalidRequest: it cannot be read, or holds something else.
        """
        try:
            if path.stat().st_size > _LARGEST:
                raise InvalidRequest(f"{path}: is longer than the {_LARGEST} bytes of a record")
            content: Any = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidRequest(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{path}: is no JSON") from error
        names = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or content.keys() != names:
            raise InvalidRequest(f"{path}: is no record of a blended model")
        for name in _FLOATS & content.keys():
            if type(content[name]) is int:
                content[name] = float(content[name])
        try:
            return cls(**content)
        except InvalidRequest as error:
            raise InvalidRequest(f"{path}: {error}") from error

    def write(self, path: Path) -> None:
        """Write it to a file, in place of the former content, in one step.

        Raises:
            InvalidRequest: it cannot be written.
        """
        made = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            made.write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")
            made.replace(path)
        except OSError as error:
            made.unlink(missing_ok=True)
            raise InvalidRequest(f"{path}: cannot be written: {error.strerror}") from error


def identity_of(namespace: Namespace) -> str:
    """SHA-256, in hexadecimal, of all facts of *namespace* about the model; not of the tenant."""
    content = {
        "model": namespace.model,
        "revision": namespace.revision,
        "lora": namespace.lora,
        "extra": namespace.extra,
        "layout": namespace.layout.describe(),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


_DIGEST = re.compile("[0-9a-f]{64}")
_KINDS: Mapping[str, type] = {"str": str, "int": int, "float": float}
_FLOATS = {field.name for field in fields(BlendRecord) if field.type == "float"}
