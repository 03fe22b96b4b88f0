"""InfiniStore's client, as far as it is used: the calls of version 0.2.35."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hexkv.ports import AdapterUnavailable

HINT = "pip install hexkv-infinistore[client]; it needs libibverbs1"


class Client(Protocol):
    """``infinistore.InfinityConnection``. Its calls block, and raise bare ``Exception``s."""

    def check_exist(self, key: str) -> bool:
        """Whether there is a value."""
        ...

    def tcp_read_cache(self, key: str) -> Any:
        """The value, an array of bytes of its own; an exception where there is none."""
        ...

    def tcp_write_cache(self, key: str, ptr: int, size: int) -> None:
        """Keep *size* bytes, more than none, from address *ptr*."""
        ...

    def delete_keys(self, keys: Sequence[str]) -> int:
        """Delete values. How many there were."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


def connecting(host: str, port: int) -> Callable[[], Client]:
    """What makes connections to a server.

    Raises:
        AdapterUnavailable: the client is not installed, or cannot be loaded.
    """
    try:
        library = importlib.import_module("infinistore")
    except ImportError as error:
        raise AdapterUnavailable("infinistore", str(error), HINT) from error

    def connect() -> Client:
        config = library.ClientConfig(
            host_addr=host, service_port=port, connection_type=library.TYPE_TCP, log_level="error"
        )
        client: Any = library.InfinityConnection(config)
        # The blocking way prints to the standard output, which is the program's.
        asyncio.run(client.connect_async())
        made: Client = client
        return made

    return connect
