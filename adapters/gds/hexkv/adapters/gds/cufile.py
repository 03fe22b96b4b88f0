"""cuFile's C interface, as far as it is used: six functions of ``libcufile.so.0``.

``cufile.h`` of GPUDirect Storage 1.x::

    typedef struct { CUfileOpError err; CUresult cu_err; } CUfileError_t;
    CUfileError_t cuFileDriverOpen(void);
    CUfileError_t cuFileHandleRegister(CUfileHandle_t *fh, CUfileDescr_t *descr);
    void          cuFileHandleDeregister(CUfileHandle_t fh);
    CUfileError_t cuFileBufRegister(const void *base, size_t length, int flags);
    CUfileError_t cuFileBufDeregister(const void *base);
    ssize_t       cuFileRead(CUfileHandle_t fh, void *base, size_t size,
                             off_t file_offset, off_t base_offset);

``cuFileRead`` returns the number of bytes; -1 with ``errno`` if the system failed; else the
negative number of a ``CUfileOpError``. ``cuFileWrite`` is not used: KV is gathered into the pool,
which all tiers are written from.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from hexkv.ports import PAGE, DeviceRange

_OPAQUE_FD = 1
_ALREADY_OPEN = 5026
_ALREADY_REGISTERED = 5023
_REGISTRATIONS = 16
"""Rooms that are registered at a time: the oldest goes for a new one."""

NAMES = {
    5001: "driver not initialised",
    5002: "driver's properties are wrong",
    5003: "a limit is not supported",
    5004: "versions of driver and library differ",
    5005: "the driver's version cannot be read",
    5006: "the driver is closing",
    5007: "platform not supported",
    5008: "I/O of this file not supported",
    5009: "device not supported",
    5010: "nvidia-fs failed",
    5011: "CUDA failed",
    5012: "the pointer is not of a device",
    5013: "memory of a wrong kind",
    5014: "the range leaves its allocation",
    5015: "another CUDA context",
    5016: "the mapping is too large",
    5017: "the mapping leaves its range",
    5018: "files of this type not supported",
    5019: "the file is open with wrong flags",
    5020: "the file is not open for direct I/O",
    5022: "a wrong argument",
    5023: "memory is registered already",
    5024: "memory is not registered",
    5025: "permission denied",
    5026: "the driver is open already",
    5027: "the file is not registered",
    5028: "the file is registered already",
    5029: "device not found",
    5030: "internal error",
    5031: "no new descriptor",
    5033: "nvidia-fs cannot be set up",
    5034: "I/O is switched off",
}


class CuFileError(OSError):
    """cuFile refused a call. ``errno`` is the system's, or a ``CUfileOpError``."""


class _Error(ctypes.Structure):
    _fields_ = (("err", ctypes.c_int), ("cu_err", ctypes.c_int))


class _Handle(ctypes.Union):
    _fields_ = (("fd", ctypes.c_int), ("handle", ctypes.c_void_p))


class _Descr(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("handle", _Handle), ("fs_ops", ctypes.c_void_p))


def library_path() -> str | None:
    """The library, of the system or of a wheel of NVIDIA's; ``None`` if there is none."""
    if found := ctypes.util.find_library("cufile"):
        return found
    for package in ("nvidia.cufile", "nvidia.cu13"):
        with suppress(ModuleNotFoundError):
            spec = importlib.util.find_spec(package)
            for place in (spec.submodule_search_locations or ()) if spec else ():
                for path in sorted(Path(place).glob("lib/libcufile.so.*")):
                    return str(path)
    return None


class CuFile:
    """The driver of this process, open for as long as the process lives. Safe from any thread.

    Args:
        path: of the library.

    Raises:
        CuFileError: the driver cannot be opened.
        OSError: the library cannot be loaded, or lacks a function.
    """

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path, use_errno=True)
        try:
            self._open = library.cuFileDriverOpen
            self._handle_register = library.cuFileHandleRegister
            self._handle_deregister = library.cuFileHandleDeregister
            self._buf_register = library.cuFileBufRegister
            self._buf_deregister = library.cuFileBufDeregister
            self._read = library.cuFileRead
        except AttributeError as error:
            raise OSError(f"{path} is no cuFile: {error}") from error
        pointer, handle = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        self._open.argtypes, self._open.restype = (), _Error
        self._handle_register.argtypes = (handle, ctypes.POINTER(_Descr))
        self._handle_register.restype = _Error
        self._handle_deregister.argtypes, self._handle_deregister.restype = (pointer,), None
        self._buf_register.argtypes = (pointer, ctypes.c_size_t, ctypes.c_int)
        self._buf_register.restype = _Error
        self._buf_deregister.argtypes, self._buf_deregister.restype = (pointer,), _Error
        offset = ctypes.c_long  # off_t of the 64-bit systems that cuFile is for
        self._read.argtypes = (pointer, pointer, ctypes.c_size_t, offset, offset)
        self._read.restype = ctypes.c_ssize_t
        self._registered: dict[int, int] = {}
        self._using: dict[int, int] = {}
        self._closed = False
        self._lock = Lock()
        _check(self._open(), "cuFileDriverOpen", (_ALREADY_OPEN,))

    @property
    def name(self) -> str:
        """The driver's name in the log."""
        return "cuFile"

    @contextmanager
    def registered(self, file: int) -> Iterator[int]:
        """The handle of an open *file*, which is open for direct I/O.

        Raises:
            CuFileError: cuFile does not take its file system, or the way it was opened.
        """
        handle = ctypes.c_void_p()
        descr = _Descr(_OPAQUE_FD, _Handle(fd=file), None)
        _check(
            self._handle_register(ctypes.byref(handle), ctypes.byref(descr)), "cuFileHandleRegister"
        )
        try:
            yield handle.value or 0
        finally:
            self._handle_deregister(handle)

    def read(self, handle: int, into: DeviceRange, start: int) -> int:
        """Fill *into* with a file's bytes from *start* on. Return how many came before its end.

        Raises:
            CuFileError: the read failed.
        """
        with self._room(into):
            done = 0
            while done < into.length:
                got = self._read(
                    handle, into.base, into.length - done, start + done, into.at + done
                )
                if got < 0:
                    number = ctypes.get_errno() if got == -1 else -got
                    raise CuFileError(number, f"cuFileRead: {_words(number)}")
                if not got:
                    break
                if got > into.length - done:
                    text = f"cuFileRead: {got} bytes, of which {into.length - done} were asked for"
                    raise CuFileError(errno.EIO, text)
                done += got
                if done % PAGE and done < into.length:
                    break  # an unaligned length is that of the end of the file
        return done

    def close(self) -> None:
        """Deregister all rooms, each once no read into it is under way."""
        with self._lock:
            self._closed = True
            for base in [base for base in self._registered if not self._using.get(base)]:
                self._let_go(base)

    @contextmanager
    def _room(self, into: DeviceRange) -> Iterator[None]:
        """Register a room, and keep it registered for the next chunks."""
        with self._lock:
            if self._registered.get(into.base) != into.size:
                if into.base in self._registered:
                    self._let_go(into.base)  # other memory at its place
                idle = [base for base in self._registered if not self._using.get(base)]
                for base in idle[: max(0, len(self._registered) - _REGISTRATIONS + 1)]:
                    self._let_go(base)
                known = (_ALREADY_REGISTERED,)
                _check(self._buf_register(into.base, into.size, 0), "cuFileBufRegister", known)
                self._registered[into.base] = into.size
            self._using[into.base] = self._using.get(into.base, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._using[into.base] -= 1
                if not self._using[into.base]:
                    del self._using[into.base]
                    if self._closed:
                        self._let_go(into.base)

    def _let_go(self, base: int) -> None:
        del self._registered[base]
        self._buf_deregister(base)


def _check(error: _Error, name: str, fine: tuple[int, ...] = ()) -> None:
    if error.err and error.err not in fine:
        cuda = f", CUDA error {error.cu_err}" if error.cu_err else ""
        raise CuFileError(error.err, f"{name}: {_words(error.err)}{cuda}")


def _words(number: int) -> str:
    if number in NAMES:
        return f"{NAMES[number]} ({number})"
    return os.strerror(number) if 0 < number < 5000 else f"error {number}"
