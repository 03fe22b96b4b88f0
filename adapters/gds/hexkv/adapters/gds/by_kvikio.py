"""The driver by kvikio, which has a thread pool over cuFile, and a mode without it.

Where cuFile has no way kvikio reads into memory of the host and copies from there: that is its
compatibility mode. It chooses between both automatically, unless ``KVIKIO_COMPAT_MODE`` does.
That, ``KVIKIO_NTHREADS`` and ``KVIKIO_TASK_SIZE`` are the process's, so they are not set here.

Rooms are not registered: kvikio registers the whole allocation that a room is in, once, and torch
cuts many rooms, and all of an engine's KV, from one.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hexkv.adapters.gds.cufile import CuFileError
from hexkv.ports import DeviceRange

_TRIED = 16
"""Bytes that are read at the start: without a driver of CUDA no call works, for any memory."""


class _Array:
    """A range of a room, as libraries for arrays on devices hand memory to each other."""

    def __init__(self, into: DeviceRange) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (into.base + into.at, False),
            "shape": (into.length,),
            "typestr": "|u1",
        }


class Kvikio:
    """Files that kvikio has open. Safe from any thread.

    Raises:
        OSError: it is not installed, or finds no driver of CUDA.
    """

    def __init__(self) -> None:
        try:
            import kvikio
            import kvikio.defaults
        except (ImportError, RuntimeError) as error:  # some libraries are not found in its own way
            raise OSError(f"kvikio cannot be imported: {_line(error)}") from error
        self._open = kvikio.CuFile
        self._compatible: bool = kvikio.defaults.is_compat_mode_preferred()
        try:
            with self._open(str(Path(__file__)), "r") as file:
                file.read(bytearray(_TRIED), _TRIED, 0)
        except RuntimeError as error:
            raise OSError(f"kvikio cannot read: {_line(error)}") from error

    @property
    def name(self) -> str:
        """The driver's name in the log."""
        return "kvikio without cuFile" if self._compatible else "kvikio"

    @contextmanager
    def registered(self, file: int) -> Iterator[Any]:
        """A handle of kvikio's for an open *file*.

        Raises:
            CuFileError: kvikio cannot open it once more.
        """
        try:
            handle = self._open(f"/proc/self/fd/{file}", "r")
        except RuntimeError as error:
            raise _failed(error) from error
        try:
            yield handle
        finally:
            handle.close()

    def read(self, handle: Any, into: DeviceRange, start: int) -> int:
        """Fill *into* with a file's bytes from *start* on. How many came.

        Raises:
            CuFileError: the read failed, or the file ended before.
        """
        if not into.length:
            return 0
        try:
            got = int(handle.read(_Array(into), into.length, start))
        except RuntimeError as error:
            raise _failed(error) from error
        if got > into.length:
            text = f"kvikio: {got} bytes, of which {into.length} were asked for"
            raise CuFileError(errno.EIO, text)
        return got

    def close(self) -> None:
        """Do nothing: no resource is kept."""


def _failed(error: RuntimeError) -> CuFileError:
    return CuFileError(errno.EIO, f"kvikio: {_line(error)}")


def _line(error: Exception) -> str:
    """The message of *error*, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
