"""Value objects: their fields checked against their types, and reprs that fit a line."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from hexkv.ports.errors import InvalidRequest


def check_parts(owner: str, name: str, parts: object, kind: type) -> None:
    """Refuse *parts*, the field *name* of *owner*, unless they are a tuple of *kind*.

    Raises:
        InvalidRequest: *parts* are no tuple, or one of them is of another type.
    """
    check_kinds(owner, tuple, **{name: parts})
    for part in parts if isinstance(parts, tuple) else ():
        check_kinds(owner, kind, **{name: part})


def check_kinds(owner: str, kind: type, **values: object) -> None:
    """Refuse *values*, fields of *owner* by name, that are not of *kind*; a bool is no int.

    Raises:
        InvalidRequest: a value is of another type; the message names the first such field.
    """
    for name, value in values.items():
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found, wanted = _named(type(value)), _named(kind)
            raise InvalidRequest(f"{owner}.{name} is of type {found}, not of type {wanted}")


def brief(self: Any) -> str:
    """Return the repr of a dataclass, without the fields that have their default."""
    shown = []
    for one in fields(self):
        usual = one.default if one.default_factory is MISSING else one.default_factory()
        if one.repr and (value := getattr(self, one.name)) != usual:
            shown.append(f"{one.name}={value!r}")
    return f"{type(self).__name__}({', '.join(shown)})"


def _named(kind: type) -> str:
    """Return the name by which *kind* is imported: others have a ``dtype``, too."""
    return f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
