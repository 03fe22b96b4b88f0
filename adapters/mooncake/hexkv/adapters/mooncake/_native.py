"""The part of Mooncake's own client that is used here, and the meaning of its codes.

The codes are those of ``ErrorCode`` in ``mooncake-store/include/types.h``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast

from hexkv.ports import (
    AdapterUnavailable,
    Failed,
    Miss,
    ReadOutcome,
    StoreError,
    StoreFull,
    StoreUnreachable,
)

HINT: Final = "pip install hexkv-mooncake[tcp], or [cuda] where CUDA is"

NO_ROOM: Final = -200
INVALID: Final = -600
NOT_READY: Final = -703
ABSENT: Final = -704

_NAMES: Final[Mapping[int, str]] = {
    -101: "no segment",
    -103: "the client is not known to the master",
    NO_ROOM: "no room in any segment",
    INVALID: "invalid parameters",
    NOT_READY: "it is being written",
    ABSENT: "not there",
    -706: "it is being read",
    -707: "the lease ended before the transfer",
    -800: "the transfer failed: its storage node may be gone",
    -900: "the master does not answer, or is one of another version",
    -901: "the master does not answer in time",
}


class BufferDescriptor(Protocol):
    """The location of one replica in a node's memory."""

    size: int
    buffer_address: int
    transport_endpoint: str


class MemoryDescriptor(Protocol):
    """A replica in memory."""

    buffer_descriptor: BufferDescriptor


class Replica(Protocol):
    """One of an object's replicas."""

    def is_memory_replica(self) -> bool: ...

    def get_memory_descriptor(self) -> MemoryDescriptor: ...


class ReplicateConfig(Protocol):
    """Options for storing an object."""

    replica_num: int
    with_hard_pin: bool


class Client(Protocol):
    """The part of ``MooncakeDistributedStore`` that is used. Addresses and sizes in bytes.

    ``setup`` and ``close`` hold the interpreter's lock for their whole duration; the others
    release it. Any call after ``close`` crashes the process.
    """

    def setup(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int,
        local_buffer_size: int,
        protocol: str,
        rdma_devices: str,
        master_server_addr: str,
    ) -> int: ...

    def close(self) -> int: ...

    def register_buffer(self, buffer_ptr: int, size: int) -> int: ...

    def unregister_buffer(self, buffer_ptr: int) -> int: ...

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]: ...

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[Replica]]: ...

    def get_size(self, key: str) -> int: ...

    def get(self, key: str) -> bytes: ...

    def put(self, key: str, value: bytes) -> int: ...

    def batch_get_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]: ...

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]: ...

    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig,
    ) -> list[int]: ...

    def batch_remove(self, keys: Sequence[str], force: bool) -> list[int]: ...

    def remove_by_regex(self, regex_pattern: str, force: bool) -> int: ...


class Engine(Protocol):
    """The part of ``TransferEngine`` that is used. Reading releases the interpreter's lock."""

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, devices: str
    ) -> int: ...

    def get_rpc_port(self) -> int: ...

    def register_memory(self, buffer_addr: int, capacity: int) -> int: ...

    def unregister_memory(self, buffer_addr: int) -> int: ...

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
    ) -> int: ...


class Library(Protocol):
    """The module ``mooncake.store``."""

    def MooncakeDistributedStore(self) -> Client: ...  # noqa: N802 - its name for the class

    def ReplicateConfig(self) -> ReplicateConfig: ...  # noqa: N802 - the same


def library() -> Library:
    """The installed library.

    Raises:
        AdapterUnavailable: it is not installed, or lacks a library of the system.
    """
    try:
        return cast("Library", importlib.import_module("mooncake.store"))
    except ImportError as error:
        raise AdapterUnavailable("mooncake", str(error), HINT) from error


def engine() -> Engine:
    """A transfer engine, not yet initialized.

    Raises:
        AdapterUnavailable: the library is not installed, or lacks a library of the system.
    """
    try:
        return cast("Engine", importlib.import_module("mooncake.engine").TransferEngine())
    except ImportError as error:
        raise AdapterUnavailable("mooncake", str(error), HINT) from error


def error_of(code: int) -> StoreError:
    """The error for a negative code."""
    text = f"mooncake: {_NAMES.get(code, 'error')} ({code})"
    if code == NO_ROOM:
        return StoreFull(text)
    if code in (INVALID, -400):
        return StoreError(text)
    return StoreUnreachable(text)


def read_outcome(code: int) -> ReadOutcome:
    """The outcome of a read with a negative code."""
    return Miss() if code in (ABSENT, NOT_READY) else Failed(error_of(code))
