"""An ability of device windows: copies on any thread, while the host computes."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class SupportsBackground(Protocol):
    """A window that copies during the call, from any thread.

    In requests layer by layer, a worker then calls it while the host computes. Not for windows
    whose copies are ordered with a thread's own work, as on a CUDA stream: only the caller's
    thread calls those.
    """

    @property
    def background(self) -> bool:
        """True if any thread may call :meth:`~DeviceKV.gather` and :meth:`~DeviceKV.scatter`."""
        ...
