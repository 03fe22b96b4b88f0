"""Checks of the fields of value objects against their types, which Python does not check."""

from __future__ import annotations

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


def _named(kind: type) -> str:
    """Return the name by which *kind* is imported: others have a ``dtype``, too."""
    return f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
