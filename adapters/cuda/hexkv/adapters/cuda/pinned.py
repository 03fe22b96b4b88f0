"""Memory for the block pool that GPUs reach directly: pinned, and near one of them.

Copies between a GPU and ordinary memory go through a small buffer of the driver's, at a
fraction of the bus's speed, and hold up the caller. So the pool's memory is registered with CUDA
once, when an engine is built. On a machine without CUDA the region is the same, unregistered.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable

import torch

from hexkv.adapters.cuda.numa import node_near, prefer
from hexkv.kernels.transfer import CudaRegistrar
from hexkv.plugins.support.available import available_bytes
from hexkv.plugins.support.mapped import RegistrableMapping, advise_huge, touch, whole_pages
from hexkv.ports import InvalidRequest, MemoryProvider, MemoryRegion, PoolExhausted, Registrar

log = logging.getLogger(__name__)


class PinnedRegion:
    """A range of memory whose pages are all backed, and pinned if there is a GPU."""

    def __init__(self, size: int, *, node: int | None, registrar: Registrar | None) -> None:
        mapping = RegistrableMapping(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._address = mapping.address
        self._buffer = memoryview(mapping)
        if node is not None:
            try:
                prefer(self._address, size, node)
            except OSError as error:  # the memory works all the same, and is merely further away
                log.warning("memory is not taken from NUMA node %d: %s", node, error)
        advise_huge(mapping)
        touch(mapping)
        if registrar is not None:
            mapping.register(registrar)

    @property
    def buffer(self) -> memoryview:
        return self._buffer

    @property
    def address(self) -> int:
        return self._address

    def close(self) -> None:
        """Give the memory back, now or when the last view of it is collected.

        The buffer alone holds the mapping, which is unregistered, then unmapped, once nothing
        holds it: never while a view of it exists.
        """
        self._buffer = memoryview(b"")


class PinnedMemory:
    """Gives regions that the GPUs of this process read and write in place.

    Args:
        node: the NUMA node to take memory from; ``None`` leaves that to the system.
        registrar: pins the memory; ``None`` leaves it unpinned.
        available: how many bytes the machine has to give.
    """

    def __init__(
        self,
        *,
        node: int | None = None,
        registrar: Registrar | None = None,
        available: Callable[[], int] = available_bytes,
    ) -> None:
        self._node = node
        self._registrar = registrar
        self._available = available

    @classmethod
    def near(cls, device: int) -> PinnedMemory:
        """For the GPU *device*; plain memory, and a warning, where CUDA is not available.

        Raises:
            InvalidRequest: there are GPUs, and this is none of them.
        """
        if not torch.cuda.is_available():
            log.warning("there is no GPU: the pool's memory is ordinary, and not pinned")
            return cls()
        if not 0 <= device < torch.cuda.device_count():
            raise InvalidRequest(f"there are {torch.cuda.device_count()} GPUs, and no {device}")
        return cls(node=_node_of(device), registrar=CudaRegistrar(torch.cuda.current_device()))

    @property
    def pins(self) -> bool:
        """True if the memory is pinned."""
        return self._registrar is not None

    def allocate(self, size: int) -> PinnedRegion:
        available = self._available()
        size = whole_pages(size, available)
        try:
            return PinnedRegion(size, node=self._node, registrar=self._registrar)
        except OSError as error:
            raise PoolExhausted(
                f"a memory region of {size:,} bytes of the {available:,} that are available "
                f"was refused: {error}"
            ) from error


def _node_of(device: int) -> int | None:
    """The NUMA node of a GPU; ``None`` if this torch does not know the GPU's bus."""
    properties = torch.cuda.get_device_properties(device)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if not all(hasattr(properties, name) for name in names):
        return None
    domain, bus, slot = (int(getattr(properties, name)) for name in names)
    return node_near(f"{domain:04x}:{bus:02x}:{slot:02x}.0")


def _keeps_the_port(
    provider: PinnedMemory, region: PinnedRegion
) -> tuple[MemoryProvider, MemoryRegion]:
    return provider, region  # mypy checks here that both keep the port's promises
