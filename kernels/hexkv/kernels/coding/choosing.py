"""Compiled code as soon as it is there, numpy until then.

Compiling takes seconds, once per machine and version; a store must not wait for it, and
neither must a process that never stores. So nothing happens before the first use, which
starts a thread that compiles, or loads what was compiled before. Both give the same bytes,
so that nobody can tell when the change happens, but by the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock, Thread
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding import plain
from hexkv.kernels.coding.floats import Floats, Words
from hexkv.kernels.coding.plain import Bytes, Streams
from hexkv.kernels.coding.tables import Tables
from hexkv.ports import DType

log = logging.getLogger("hexkv")


class Coder(Protocol):
    """What ``plain`` and ``compiled`` have; see :mod:`hexkv.kernels.coding.plain`."""

    def narrowed(self, numbers: Floats, dtype: DType) -> Words: ...

    def quantise(self, values: Floats, half: int) -> tuple[Bytes, Floats] | None: ...

    def moments(self, symbols: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...

    def histograms(self, symbols: Bytes) -> npt.NDArray[np.uint32]: ...

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


def _compiled() -> Coder:
    from hexkv.kernels.coding import compiled

    return compiled


class Choice:
    """The fastest coder that does not make anybody wait."""

    def __init__(self, load: Callable[[], Coder] = _compiled) -> None:
        self._load = load
        self._coder: Coder = plain
        self._starting = Lock()
        self._thread: Thread | None = None

    @property
    def coder(self) -> Coder:
        """To use for one call; the first question starts the compiler."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    # Not a daemon: an interpreter must not end while a compiler runs in it.
                    self._thread = Thread(target=self._warm, name="hexkv compiles")
                    self._thread.start()
        return self._coder

    def wait(self, timeout: float) -> bool:
        """Start if need be, and wait at most *timeout* seconds. Whether it is compiled then."""
        _ = self.coder
        if self._thread is not None:
            self._thread.join(timeout)
        return self._coder is not plain

    def _warm(self) -> None:
        try:
            self._coder = self._load()
        except Exception as error:  # noqa: BLE001 - numba, LLVM or a disk: numpy does as well
            log.warning("KV is coded by numpy, at a tenth of the speed: %s", error)
