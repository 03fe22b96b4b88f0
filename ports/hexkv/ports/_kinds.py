"""Whether values are of the kinds that a value object says. Types are not checked by Python."""

from __future__ import annotations

from hexkv.ports.errors import InvalidRequest


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
