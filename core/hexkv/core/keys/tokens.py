"""Tokens in the form from which every key is computed: contiguous little-endian uint32."""

from __future__ import annotations

import operator
import sys
from array import array
from collections.abc import Sequence
from typing import Literal, Protocol, SupportsIndex, TypeGuard

from hexkv.ports import Deadline, InvalidTokens, Tokens
from hexkv.ports.keys import Buffer

TOKEN_BYTES = 4

AT_ONCE = 1 << 16
"""The number of a list's tokens packed between two checks of the clock: about 2 ms."""

_LISTS = (list, tuple)
"""As a union it would be made anew at each check, which takes longer than the check."""

_ORDERS: dict[str, Literal["little", "big"]] = {
    **dict.fromkeys(("", "@", "="), sys.byteorder),
    "<": "little",
    ">": "big",
    "!": "big",
}
_FORMATS = {
    order + code: (code.islower(), name)
    for order, name in _ORDERS.items()
    for code in "bhilqnBHILQN"
}
"""Whether integers of a buffer's format have a sign, and their byte order."""


class _Tensor(Protocol):
    """The part of a torch tensor used here; it is no buffer and may lie on a device."""

    def detach(self) -> _Tensor: ...
    def cpu(self) -> _Tensor: ...
    def numpy(self) -> Buffer: ...
    def tolist(self) -> object: ...


class _Array(Protocol):
    """The part of a numpy array used here; it narrows its own elements six times as fast."""

    def max(self) -> SupportsIndex: ...
    def view(self, dtype: str) -> _Array: ...
    def astype(self, dtype: str) -> Buffer: ...


def pack(tokens: Tokens) -> memoryview:
    """Return the tokens as little-endian uint32: a read-only, contiguous view of format ``B``.

    Copies only when needed. The view of a contiguous buffer that holds 32-bit tokens in this order
    already *is* that buffer: do not change it while the view is in use.

    Raises:
        InvalidTokens: *tokens* is neither a sequence of integers in ``[0, 2**32)`` nor a
            one-dimensional buffer of them. Booleans are no tokens but a mask: refused when a buffer
            holds them, or a sequence begins with one.
    """
    if isinstance(tokens, _LISTS):
        return _pack_integers(tokens)
    try:
        view = memoryview(tokens)  # type: ignore[arg-type] # an error is caught below
    except TypeError:
        if _is_tensor(tokens):
            return _pack_tensor(tokens)
        if isinstance(tokens, Sequence):
            return _pack_integers(tokens)
        raise InvalidTokens(f"a {type(tokens).__name__} is not a sequence of tokens") from None
    except (BufferError, ValueError) as error:
        raise InvalidTokens(f"the tokens' buffer cannot be read: {error}") from error
    return _pack_buffer(view, tokens)


def pack_within(tokens: Tokens, deadline: Deadline | None) -> memoryview | None:
    """As :func:`pack`; ``None`` once *deadline* has passed. Buffers are packed without a check."""
    if deadline is None or not isinstance(tokens, _LISTS):
        return pack(tokens)
    packed = bytearray()
    try:
        for at in range(0, len(tokens), AT_ONCE):
            if at and deadline.expired:
                return None
            packed += _pack_integers(tokens[at : at + AT_ONCE])
    except InvalidTokens:
        return _pack_integers(tokens)  # raises with the position in the whole
    return memoryview(packed).toreadonly()


def _pack_tensor(tensor: _Tensor) -> memoryview:
    try:
        host = tensor.detach().cpu()
        try:
            array = host.numpy()
            return _pack_buffer(memoryview(array), array)
        except (RuntimeError, TypeError):  # torch without numpy, or a dtype that numpy lacks
            values = host.tolist()
    except RuntimeError as error:  # sparse, or on a device without data
        first_line = str(error).partition("\n")[0]
        raise InvalidTokens(f"the tokens cannot be read: {first_line}") from error
    if not isinstance(values, list):
        raise InvalidTokens("tokens must have one dimension, not 0")
    return _pack_integers(values)


def _pack_integers(tokens: Sequence[int]) -> memoryview:
    try:
        words = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise InvalidTokens(_first_fault(tokens) or str(error)) from error
    if words and isinstance(tokens[0], bool):
        raise InvalidTokens("token at position 0 is a bool: this is a mask, not tokens")
    if sys.byteorder == "big":
        words.byteswap()
    # As bytes: names are kept with the tokens, and bytes need no other copy.
    return memoryview(words.tobytes())


def _first_fault(tokens: Sequence[SupportsIndex]) -> str:
    for position, token in enumerate(tokens):
        try:
            value = operator.index(token)
        except TypeError:
            return f"token at position {position} is a {type(token).__name__}, not an integer"
        if not 0 <= value < 1 << 32:
            # Python refuses to print integers of thousands of digits.
            shown = str(value) if value.bit_length() <= 64 else f"of {value.bit_length()} bits"
            return f"token {shown} at position {position} is not in [0, 2**32)"
    return ""


def _pack_buffer(view: memoryview, source: object) -> memoryview:
    """Return the tokens of *view*, which is all of *source*."""
    if (found := _FORMATS.get(view.format)) is None:
        raise InvalidTokens(f"tokens must be integers, not of buffer format {view.format!r}")
    if view.ndim != 1:
        raise InvalidTokens(f"tokens must have one dimension, not {view.ndim}")
    (signed, order), width = found, view.itemsize
    ready = width == TOKEN_BYTES and order == "little"
    if ready and not signed:
        return _bytes_of(view)

    if width > TOKEN_BYTES and len(view) and _is_array(source):
        # A negative one, viewed as unsigned, is larger than any token.
        unsigned = source.view(f"{'<' if order == 'little' else '>'}u{width}")
        if operator.index(unsigned.max()) < 1 << 32:
            return _bytes_of(memoryview(source.astype("<u4")))

    # raw[i::width] is byte i of every token, taken at the speed of C: no loop over tokens.
    raw = view.tobytes()
    planes = range(width) if order == "little" else range(width - 1, -1, -1)
    negative = signed and not raw[planes[-1] :: width].isascii()
    zeros = bytes(len(view))
    if negative or any(raw[plane::width] != zeros for plane in planes[TOKEN_BYTES:]):
        words = (raw[at : at + width] for at in range(0, len(raw), width))
        raise InvalidTokens(
            _first_fault([int.from_bytes(word, order, signed=signed) for word in words])
        )
    if ready:
        return _bytes_of(view)
    packed = bytearray(len(view) * TOKEN_BYTES)
    for place, plane in enumerate(planes[:TOKEN_BYTES]):
        packed[place::TOKEN_BYTES] = raw[plane::width]
    return memoryview(packed).toreadonly()


def _is_tensor(source: object) -> TypeGuard[_Tensor]:
    # A check of the protocol would take 18 us.
    return all(hasattr(source, name) for name in ("detach", "cpu", "numpy", "tolist"))


def _is_array(source: object) -> TypeGuard[_Array]:
    """True for arrays of numpy's own class: others may leave out elements, or hide them."""
    kind = type(source)
    return (kind.__module__, kind.__qualname__) == ("numpy", "ndarray")


def _bytes_of(view: memoryview) -> memoryview:
    # A view whose format names its byte order cannot be cast.
    if view.c_contiguous and len(view.format) == 1:
        return view.toreadonly().cast("B")
    return memoryview(view.tobytes())
