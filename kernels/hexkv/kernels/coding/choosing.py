"""Compiled code as soon as it is ready, numpy until then.

Compiling takes seconds, once per machine and version; a store must not wait for it, and neither
must a process that never stores. So nothing happens before the first use, which starts a thread
that compiles, or loads the code that was compiled before. Both give the same bytes, so the change
is visible only in the time that a call takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock, Thread
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding import lowbit, plain
from hexkv.kernels.coding.bits import Words as Bits
from hexkv.kernels.coding.floats import Floats, Words
from hexkv.kernels.coding.plain import Bytes, Streams
from hexkv.kernels.coding.tables import Tables
from hexkv.ports import DType

log = logging.getLogger(__name__)
C = TypeVar("C")


class Coder(Protocol):
    """The functions of ``plain`` and ``compiled``; see :mod:`hexkv.kernels.coding.plain`."""

    def symbols(
        self, elements: Bits, dtype: DType
    ) -> tuple[Bytes, npt.NDArray[np.uint16]] | None: ...

    def lower(self, elements: Bits, dtype: DType) -> list[Bytes]: ...

    def join(self, upper: Bits, planes: list[Bytes], dtype: DType) -> None: ...

    def narrowed(self, numbers: Floats, dtype: DType) -> Words: ...

    def quantise(self, values: Floats, half: int) -> tuple[Bytes, Floats] | None: ...

    def moments(self, symbols: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...

    def histograms(self, symbols: Bytes) -> npt.NDArray[np.uint32]: ...

    def by_class(
        self, seen: npt.NDArray[np.uint32], classes: Bytes, many: int
    ) -> npt.NDArray[np.int64]: ...

    def counted(self, seen: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]: ...

    def weighed(
        self, seen: npt.NDArray[np.uint32], weights: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]: ...

    def encode(self, symbols: Bytes, classes: Bytes, turns: Bytes, tables: Tables) -> Streams: ...

    def decode(
        self,
        streams: Streams,
        classes: Bytes,
        turns: Bytes,
        tables: Tables,
        values: Words,
        into: Words,
    ) -> bool: ...


class LowBit(Protocol):
    """The functions of ``lowbit`` and ``compiled_lowbit``; see :mod:`hexkv.kernels.coding.lowbit`.

    Numbers and levels are ``[groups, peers]``, scales ``[groups]``.
    """

    def narrowed(self, numbers: Floats, dtype: DType) -> Words: ...

    def transposed(self, values: Floats) -> Floats: ...

    def peaks(self, values: Floats) -> Floats | None: ...

    def ends(self, values: Floats) -> tuple[Floats, Floats] | None: ...

    def to_int8(self, values: Floats, peaks: Floats) -> npt.NDArray[np.int8]: ...

    def from_int8(self, levels: npt.NDArray[np.int8], peaks: Floats) -> Floats: ...

    def to_int4(self, values: Floats, low: Floats, high: Floats) -> Bytes: ...

    def from_int4(self, steps: Bytes, low: Floats, high: Floats) -> Floats: ...

    def packed(self, steps: Bytes) -> Bytes: ...

    def unpacked(self, pairs: Bytes, count: int) -> Bytes: ...

    def to_float8(self, values: Floats, peaks: Floats) -> Bytes: ...

    def from_float8(self, codes: Bytes, peaks: Floats) -> Floats: ...


def _compiled() -> Coder:
    from hexkv.kernels.coding import compiled

    return compiled


def _compiled_lowbit() -> LowBit:
    from hexkv.kernels.coding import compiled_lowbit

    return compiled_lowbit


class _Fastest(Generic[C]):
    """The fastest coder that can be used without waiting for the compiler."""

    def __init__(self, load: Callable[[], C], until: C) -> None:
        self._load = load
        self._until = self._coder = until
        self._starting = Lock()
        self._thread: Thread | None = None

    @property
    def coder(self) -> C:
        """The coder for one call; the first access starts the compiler."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    # Not a daemon: an interpreter must not end while a compiler runs in it.
                    self._thread = Thread(target=self._warm, name="hexkv compiles")
                    self._thread.start()
        return self._coder

    def wait(self, timeout: float) -> bool:
        """Start if need be, and wait at most *timeout* seconds. True if it is compiled then."""
        _ = self.coder
        if self._thread is not None:
            self._thread.join(timeout)
        return self._coder is not self._until

    def _warm(self) -> None:
        try:
            self._coder = self._load()
        except Exception as error:  # noqa: BLE001 - numba, LLVM or a disk: numpy does as well
            log.warning("KV is coded by numpy, at a tenth of the speed: %s", error)


class Choice(_Fastest[Coder]):
    """The fastest entropy coder that can be used without waiting for the compiler."""

    def __init__(self, load: Callable[[], Coder] = _compiled) -> None:
        super().__init__(load, plain)


class LowBitChoice(_Fastest[LowBit]):
    """The fastest coder of 8 and 4 bits that can be used without waiting for the compiler."""

    def __init__(self, load: Callable[[], LowBit] = _compiled_lowbit) -> None:
        super().__init__(load, lowbit)
