"""Makes the reference of the configuration: the schema's keys, with the text of operations.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from hexkv.plugins.configuration.schema import EngineSettings
from hexkv.plugins.configuration.section import Section

OPERATIONS = Path(__file__).parent.parent / "operations.md"
_ROW = re.compile(r"^\| `([\w.\[\]]+)` \| (.+?) \| (.+) \|$", re.MULTILINE)


def page() -> str:
    """Return the sections of the page, one for each key of the first level."""
    after = OPERATIONS.read_text().partition("| key | default | meaning |")[2]
    text = after.partition("\n\n")[0]
    rows = {key: (default, about) for key, default, about in _ROW.findall(text)}
    parts = []
    for top, keys in groupby(_keys(EngineSettings), lambda row: re.split(r"[.\[]", row[0])[0]):
        parts.append(f"## {top}\n")
        for key, kind, example in keys:
            default, about = rows[key]
            variable = "HEXKV_" + key.replace("[]", "__0").replace(".", "__").upper()
            parts.append(f"`{key}`\n: {_moved(about)}.\n")
            parts.append(f"  {kind}; default {default}; for example `{variable}={example}`\n")
    return "\n".join(parts)


def _moved(text: str) -> str:
    """Return *text* with its links as from the folder below."""
    return re.sub(r"\]\((?!http|\.\.|#)", "](../", text.replace("](#", "](../operations.md#"))


def _keys(section: type[Section], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each key of the schema, the kind of its values, and one of them."""
    for key, field in section.model_fields.items():
        kind: Any = field.annotation
        inside = [one for one in (kind, *get_args(kind)) if _is_section(one)]
        if not inside or kind is not inside[0]:
            yield (f"{prefix}{key}", *_value(field))
        if inside:
            listed = "" if kind is inside[0] else "[]"
            yield from _keys(inside[0], f"{prefix}{key}{listed}.")


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _value(field: Any) -> tuple[str, str]:
    """Return the kind of the values of a setting, with their unit, and an example."""
    described = f"{field.annotation} {field.metadata}"
    for mark, kind, example in (
        ("parse_size", "A size in bytes, or with a unit", "64GiB"),
        ("parse_time", "A time in seconds, or with a unit", "500ms"),
        ("SecretStr", "A text, secret", "..."),
        ("bool", "`true` or `false`", "true"),
    ):
        if mark in described:
            return kind, example
    if "Literal" in described:
        words = re.findall(r"'([^']*)'", described)
        return "One of " + ", ".join(f"`{word}`" for word in words if word), words[-1]
    for mark, kind, example in (
        ("list", "A list", "[]"),
        ("tuple", "A list", "[]"),
        ("dict", "A mapping", "{}"),
        ("float", "A number", "0.5"),
        ("int", "A whole number", "8"),
    ):
        if mark in described:
            default = field.default if isinstance(field.default, int | float) else None
            return kind, json.dumps(default) if default else example
    return "A text", str(field.default) if isinstance(field.default, str) and field.default else "x"
