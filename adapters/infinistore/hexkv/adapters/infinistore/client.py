"""The part of InfiniStore's client that is used: the calls of version 0.2.35."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hexkv.ports import AdapterUnavailable

HINT = "pip install hexkv-infinistore[client]; it needs libibverbs1"


class InfinityConnection(Protocol):
    """``infinistore.InfinityConnection``. Its calls block, and raise bare ``Exception``s."""

    def check_exist(self, key: str) -> bool:
        """Return True if there is a value."""
        ...

    def tcp_read_cache(self, key: str) -> Any:
        """Return the value in an array of bytes of its own; raise if there is none."""
        ...

    def tcp_write_cache(self, key: str, ptr: int, size: int) -> None:
        """Store *size* bytes, at least one, from address *ptr*."""
        ...

    def delete_keys(self, keys: Sequence[str]) -> int:
        """Delete values and return the number of those that existed."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


def connecting(host: str, port: int) -> Callable[[], InfinityConnection]:
    """A function that connects to a server.

    Raises:
        AdapterUnavailable: the client is not installed, or cannot be loaded.
    """
    try:
        library = importlib.import_module("infinistore")
    except ImportError as error:
        raise AdapterUnavailable("infinistore", str(error), HINT) from error

    def connect() -> InfinityConnection:
        config = library.ClientConfig(
            host_addr=host, service_port=port, connection_type=library.TYPE_TCP, log_level="error"
        )
        client: Any = library.InfinityConnection(config)
        # The blocking call prints to standard output, which belongs to the program.
        asyncio.run(client.connect_async())
        made: InfinityConnection = client
        return made

    return connect
