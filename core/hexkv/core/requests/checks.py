"""Checks of callers' arguments, made at the edge, with clear errors."""

from __future__ import annotations

from math import inf, isfinite
from operator import index

from hexkv.ports import (
    Clock,
    Deadline,
    DeviceKV,
    InvalidRequest,
    KVLayout,
    LayoutMismatch,
    Namespace,
)


def check_namespace(namespace: object) -> None:
    """Check that *namespace* is a ``Namespace``: nothing less may name chunks.

    Raises:
        InvalidRequest: it is something else.
    """
    if not isinstance(namespace, Namespace):
        raise InvalidRequest(f"a {type(namespace).__name__} is no namespace")


def check_seconds(seconds: object) -> float:
    """Return *seconds* as a time to wait or to hold: a number, finite and not negative.

    Raises:
        InvalidRequest: it is something else. A wait of NaN seconds would never end.
    """
    if not isinstance(seconds, float | int) or isinstance(seconds, bool):
        raise InvalidRequest(f"a time is a number of seconds, not a {type(seconds).__name__}")
    try:
        number = float(seconds)
    except OverflowError:
        number = inf
    if not (isfinite(number) and number >= 0):
        raise InvalidRequest(f"a time is finite and not negative, not {number} seconds")
    return number


def timeout_or(timeout: object, usual: float) -> float:
    """Return *timeout* as :func:`check_seconds` does; *usual* for ``None``."""
    return usual if timeout is None else check_seconds(timeout)


def deadline_of(clock: Clock, begun: float, timeout: object, usual: float) -> Deadline:
    """Return the deadline of a call that has *begun*, after *timeout* or the *usual* seconds.

    Raises:
        InvalidRequest: as :func:`check_seconds`.
    """
    seconds = usual if timeout is None else check_seconds(timeout)
    row = clock, begun + seconds, usual if seconds < usual else 0.0
    return tuple.__new__(Deadline, row)  # every call has one: the class takes twice as long


def check_window(device: DeviceKV, layout: KVLayout, tokens: int) -> None:
    """Check that *device* is a window on *tokens* positions of KV with *layout*.

    Raises:
        InvalidRequest: it is no window, or has more or fewer positions.
        LayoutMismatch: its KV has another dtype or shape.
    """
    held = getattr(device, "layout", None)
    if not isinstance(held, KVLayout):
        raise InvalidRequest(f"a {type(device).__name__} is not a window on a device's KV")
    try:
        device.gather, device.scatter  # noqa: B018 - a window lacks one now or in the middle
    except AttributeError as error:
        raise InvalidRequest(f"the window has no method {error.name!r}") from error
    if device.tokens != tokens:
        raise InvalidRequest(
            f"the device window (slot mapping) addresses {device.tokens} positions "
            f"for {tokens} tokens"
        )
    if held is not layout and held != layout and held.describe() != layout.describe():
        raise LayoutMismatch(
            f"the device holds {held.describe()}, the namespace is {layout.describe()}"
        )


def skipped(skip: int, tokens: int) -> int:
    """Return how many of *tokens* tokens at the front to skip.

    Raises:
        InvalidRequest: *skip* is no whole number, or out of range.
    """
    try:
        count = index(skip)  # also numpy's integers, but no float
    except TypeError as error:
        raise InvalidRequest(f"skip must be a number of tokens, not {skip!r}") from error
    if not 0 <= count <= tokens:
        raise InvalidRequest(f"skip must be between 0 and {tokens}, not {skip!r}")
    return count
