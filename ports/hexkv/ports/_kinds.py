"""Whether values are of the kinds that a value object says. Types are not checked by Python."""

from __future__ import annotations

from hexkv.ports.errors import InvalidRequest


def check_parts(owner: str, name: str, parts: object, kind: type) -> None:
    """Refuse *parts*, the field *name* of *owner*, unless they are a tuple of *kind*.

    Raises:
        InvalidRequest: says what they are.
    """
    check_kinds(owner, tuple, **{name: parts})
    for part in parts if isinstance(parts, tuple) else ():
        check_kinds(owner, kind, **{name: part})


def check_kinds(owner: str, kind: type, **values: object) -> None:
    """Refuse *values*, fields of *owner* by name, that are not of *kind*; a bool is no number.

    Raises:
        InvalidRequest: names the first that is not.
    """
    for name, value in values.items():
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InvalidRequest(
                f"{owner}.{name} is a {type(value).__name__}, not a {kind.__name__}"
            )
