"""The base of the sections of the schema."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    SerializationInfo,
    WithJsonSchema,
)

from hexkv.plugins.configuration.secret import HIDDEN
from hexkv.plugins.configuration.sizes import exact_size, parse_size, parse_time

WITH_UNITS = {"sizes": "with units"}
"""The context of a dump for people: sizes are texts."""


def _with_unit(kind: str, text: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": kind}, {"type": "string", "examples": [text]}]})


def _written(size: int, info: SerializationInfo) -> str | int:
    return exact_size(size) if info.context == WITH_UNITS else size


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(gt=0, lt=2**63),
    PlainSerializer(_written),
    _with_unit("integer", "8GiB"),
]
"""Bytes, given as a number or with a unit."""

Seconds = Annotated[
    float,
    BeforeValidator(parse_time),
    Field(gt=0, le=86_400, allow_inf_nan=False),
    _with_unit("number", "10s"),
]
"""Seconds, given as a number or with a unit."""


def _hidden(settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    # Only the adapter knows which of them are secrets (`hexkv config show` asks it), so no text is
    # shown, and no number: a secret may be written as one, and the adapter refuses it later.
    return dict.fromkeys(settings, HIDDEN)


Own = Annotated[dict[str, JsonValue], PlainSerializer(_hidden)]
"""An adapter's own settings, which may have secrets: neither printed nor dumped as they are."""


class Section(BaseModel):
    """The base of all sections."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)
