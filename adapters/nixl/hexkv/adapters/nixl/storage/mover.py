"""Moves bytes between staging memory and a file or an object, by one of NIXL's plug-ins."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, Literal

from hexkv.adapters.net.errors import OutOfTime, time_left
from hexkv.adapters.nixl.agent import DRAM, Agent, Hold, Transfer
from hexkv.adapters.nixl.memory import made
from hexkv.adapters.nixl.storage.staging import Slot, Staging
from hexkv.ports import AdapterUnavailable, Deadline, StoreError

UNFILLED = 16
"""Bytes at the end of a fetch's memory that are zeroed before it."""

ASKED = 16
"""Objects queried at once, each by a thread: with a dead service, each for 26 s."""

_FAREWELL = 0.5
"""Seconds for the thread to end if no transfer is under way."""


@dataclass(frozen=True, slots=True)
class NixlRange:
    """The location of bytes, in NIXL's terms."""

    kind: Literal["FILE", "OBJ"]
    number: int
    """A file's descriptor; for an object any number that no other one under way has."""

    name: str = ""
    """The object's."""

    start: int = 0


class Fetch:
    """Bytes on their way into staging memory, for one caller to wait for."""

    def __init__(self, transfer: Transfer, slot: Slot) -> None:
        self._transfer = transfer
        self._slot = slot

    def wait(self, deadline: Deadline) -> Slot:
        """Return the bytes, which the caller must release.

        Raises:
            OutOfTime: too late. The transfer goes on, into memory that nothing else uses.
            StoreError: it failed.
        """
        try:
            _wait(self._transfer, deadline)
        except BaseException:
            self._slot.release()
            raise
        return self._slot

    def leave(self) -> None:
        """Give up waiting. The transfer goes on, as a late one does."""
        self._slot.release()


class Mover:
    """NIXL's agent with one of its plug-ins for storage. Safe from any thread.

    Args:
        plugin: its name, for instance ``POSIX``.
        options: of the plug-in, as NIXL has them.
        staging: the memory that bytes pass through.

    Raises:
        AdapterUnavailable: NIXL is not installed, or its plug-in cannot be loaded here.
    """

    def __init__(self, plugin: str, options: Mapping[str, str], staging: Staging) -> None:
        self._plugin = plugin
        self._options = dict(options)
        self._agent = Agent(self._made, time.sleep, peers=False)
        self._staging = staging

    def fetch(
        self, place: NixlRange, size: int, deadline: Deadline, held: Sequence[Hold] = ()
    ) -> Slot:
        """Return *size* bytes of *place*, which the caller must release.

        Args:
            place: of the bytes.
            size: the number of bytes; a file must have as many.
            deadline: the end of the wait.
            held: released at the end of the transfer, in any case.

        Raises:
            OutOfTime: too late. The transfer goes on, into memory that nothing else uses.
            StoreError: it failed.
        """
        return self.begin_fetch(place, size, deadline, held).wait(deadline)

    def spare(self, size: int, deadline: Deadline) -> Slot | None:
        """Memory for *size* bytes; None if none is free now."""
        try:
            return self._staging.take(size, Deadline(deadline.clock, deadline.clock.now()))
        except (OutOfTime, StoreError):
            return None

    def begin_fetch(
        self,
        place: NixlRange,
        size: int,
        deadline: Deadline,
        held: Sequence[Hold] = (),
        slot: Slot | None = None,
    ) -> Fetch:
        """As :meth:`fetch`, without waiting for the bytes. Into *slot*, if that is given.

        Raises:
            OutOfTime, StoreError: too late, or it cannot begin.
        """
        try:
            slot = slot or self._staging.take(size, deadline)
        except BaseException:
            _release(held)
            raise
        # Zeros show a reader who knows the last bytes that the library did not fill the memory.
        slot.view[max(0, size - UNFILLED) : size] = bytes(min(size, UNFILLED))
        try:
            return Fetch(self._begin("READ", place, slot, size, deadline, held), slot)
        except BaseException:
            slot.release()
            raise

    def stage(self, size: int, deadline: Deadline) -> Slot:
        """Memory for *size* bytes to send.

        Raises:
            OutOfTime, StoreError: there is none.
        """
        return self._staging.take(size, deadline)

    def send(
        self, place: NixlRange, slot: Slot, size: int, deadline: Deadline, held: Sequence[Hold] = ()
    ) -> None:
        """Write the first *size* bytes of *slot* to *place*. The rest is as for :meth:`fetch`."""
        _wait(self._begin("WRITE", place, slot, size, deadline, held), deadline)

    def close(self) -> None:
        """Refuse new calls. Transfers under way go on."""
        self._agent.close(_FAREWELL)

    def asking(self) -> Agent:
        """Another agent with the same plug-in, for queries, which block its thread.

        Raises:
            AdapterUnavailable: as for :class:`Mover`.
        """
        threads = {"num_threads": str(ASKED)}
        return Agent(partial(self._made, threads), time.sleep, peers=False)

    def _made(self, more: Mapping[str, str] | None = None) -> Any:
        agent = made(f"hexkv-{token_hex(8)}", ())
        try:
            agent.create_backend(self._plugin, self._options | dict(more or {}))
        except Exception as error:
            # A wheel reports plug-ins that lack CUDA or a driver as "not found".
            why = f"plug-in {self._plugin} cannot be loaded ({error})"
            raise AdapterUnavailable("nixl", why, "install what that plug-in needs") from error
        return agent

    def _begin(
        self,
        way: Literal["READ", "WRITE"],
        place: NixlRange,
        slot: Slot,
        size: int,
        deadline: Deadline,
        held: Sequence[Hold],
    ) -> Transfer:
        registered: list[Any] = []

        def make(agent: Any) -> Any:
            mine = [self._plugin]
            registered.append(
                agent.register_memory([(slot.address, size, 0, "")], DRAM, backends=mine)
            )
            there = [(place.start, size, place.number, place.name)]
            registered.append(agent.register_memory(there, place.kind, backends=mine))
            here = agent.get_xfer_descs([(slot.address, size, 0)], DRAM)
            far = agent.get_xfer_descs([(place.start, size, place.number)], place.kind)
            return agent.initialize_xfer(way, here, far, agent.name, b"", backends=mine)

        def over(agent: Any) -> None:
            for each in registered:
                agent.deregister_memory(each, backends=[self._plugin])

        try:
            time_left(deadline)
            slot.share()
        except BaseException:
            _release(held)
            raise
        transfer = Transfer(make, [slot, *held], (), over)
        self._agent.begin(transfer)
        return transfer


def _wait(transfer: Transfer, deadline: Deadline) -> None:
    if not transfer.wait(max(0.0, deadline.remaining())):
        raise OutOfTime("NIXL is not done")


def _release(held: Sequence[Hold]) -> None:
    for hold in held:
        hold.release()
