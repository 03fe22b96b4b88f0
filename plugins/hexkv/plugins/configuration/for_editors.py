"""The JSON schema of a configuration, by which editors complete and check a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hexkv.plugins.configuration.schema import EngineSettings
from hexkv.plugins.configuration.settings import json_schema
from hexkv.plugins.spec import AdapterSpec, Kind

_NAMED: dict[Kind, tuple[str, str]] = {
    "store": ("TierSettings", "store"),
    "memory": ("Pool", "provider"),
    "directory": ("DirectorySettings", "adapter"),
    "channel": ("PeersSettings", "channel"),
}
"""By kind of adapter, the section that names one, and the key; ``settings`` are beside it."""

_OWN: dict[Kind, str] = {"admin": "admin", "observe": "observe"}
"""By kind of adapter, the section that has its settings."""


def schema_of(adapters: Mapping[tuple[Kind, str], AdapterSpec]) -> dict[str, Any]:
    """Return the schema of a whole configuration, with the settings of *adapters*."""
    whole: dict[str, Any] = json.loads(json.dumps(json_schema(EngineSettings)))
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A configuration of hexkv",
        **{key: value for key, value in whole.items() if key != "title"},
    }
    parts = whole["$defs"]
    for (kind, name), spec in sorted(adapters.items()):
        if kind not in _NAMED and kind not in _OWN:
            continue
        place = f"{kind}.{name}"
        parts[place] = _hoisted(json_schema(spec.settings), place, parts)
        settings = {"$ref": f"#/$defs/{place}"}
        if kind in _OWN:
            # An empty section means none.
            whole["properties"][_OWN[kind]] = {"anyOf": [{"maxProperties": 0}, settings]}
            continue
        section, key = _NAMED[kind]
        named = {"required": [key], "properties": {key: {"const": name}}}
        rule = {"if": named, "then": {"properties": {"settings": settings}}}
        parts[section].setdefault("allOf", []).append(rule)
    return whole


def _hoisted(schema: Mapping[str, Any], place: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Return *schema* with its own definitions moved to *parts*, below names with *place*."""
    text = json.dumps(schema).replace('"#/$defs/', f'"#/$defs/{place}.')
    moved: dict[str, Any] = json.loads(text)
    for name, part in moved.pop("$defs", {}).items():
        parts[f"{place}.{name}"] = part
    if "properties" in moved:
        moved.setdefault("additionalProperties", False)
    return moved
