"""Bytes between staging memory and what one of NIXL's plug-ins reaches: a file, or an object."""

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
"""Bytes at the end of what is fetched that are zeros before."""

ASKED = 16
"""Objects that are asked for at once, each by a thread: of a dead service, each for 26 s."""

_FAREWELL = 0.5
"""Seconds for the thread to end where nothing moves any more."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where bytes are, as NIXL names it."""

    kind: Literal["FILE", "OBJ"]
    number: int
    """A file's descriptor; of an object any number that no other one under way has."""

    name: str = ""
    """The object's."""

    start: int = 0


class Fetch:
    """Bytes on their way into staging memory, for one caller to wait for."""

    def __init__(self, transfer: Transfer, slot: Slot) -> None:
        self._transfer = transfer
        self._slot = slot

    def wait(self, deadline: Deadline) -> Slot:
        """The bytes, for the caller to release.

        Raises:
            OutOfTime: too late. What is under way goes on, into memory that nobody else has.
            StoreError: it failed.
        """
        try:
            _wait(self._transfer, deadline)
        except BaseException:
            self._slot.release()
            raise
        return self._slot

    def leave(self) -> None:
        """Wait no more. What is under way goes on, as if it were late."""
        self._slot.release()


class Mover:
    """NIXL's agent with one of its plug-ins for storage. Safe from any thread.

    Args:
        plugin: its name, for instance ``POSIX``.
        options: of the plug-in, as NIXL has them.
        staging: what bytes pass through.

    Raises:
        AdapterUnavailable: NIXL is not installed, or its plug-in cannot be loaded here.
    """

    def __init__(self, plugin: str, options: Mapping[str, str], staging: Staging) -> None:
        self._plugin = plugin
        self._options = dict(options)
        self._agent = Agent(self._made, time.sleep, peers=False)
        self._staging = staging

    def fetch(self, place: Place, size: int, deadline: Deadline, held: Sequence[Hold] = ()) -> Slot:
        """*size* bytes of *place*, for the caller to release.

        Args:
            place: of them.
            size: bytes; of a file it must have so many.
            deadline: until when to wait.
            held: released once nothing moves any more, in any case.

        Raises:
            OutOfTime: too late. What is under way goes on, into memory that nobody else has.
            StoreError: it failed.
        """
        return self.begin_fetch(place, size, deadline, held).wait(deadline)

    def spare(self, size: int, deadline: Deadline) -> Slot | None:
        """Memory for *size* bytes, if there is some at once."""
        try:
            return self._staging.take(size, Deadline(deadline.clock, deadline.clock.now()))
        except (OutOfTime, StoreError):
            return None

    def begin_fetch(
        self,
        place: Place,
        size: int,
        deadline: Deadline,
        held: Sequence[Hold] = (),
        slot: Slot | None = None,
    ) -> Fetch:
        """Likewise, without waiting for the bytes. Into *slot*, if that is given.

        Raises:
            OutOfTime, StoreError: too late, or it cannot begin.
        """
        try:
            slot = slot or self._staging.take(size, deadline)
        except BaseException:
            _release(held)
            raise
        # What a library calls done without having filled it is seen by whoever knows the end.
        slot.view[max(0, size - UNFILLED) : size] = bytes(min(size, UNFILLED))
        try:
            return Fetch(self._begin("READ", place, slot, size, deadline, held), slot)
        except BaseException:
            slot.release()
            raise

    def stage(self, size: int, deadline: Deadline) -> Slot:
        """Memory for *size* bytes that are to be sent.

        Raises:
            OutOfTime, StoreError: there is none.
        """
        return self._staging.take(size, deadline)

    def send(
        self, place: Place, slot: Slot, size: int, deadline: Deadline, held: Sequence[Hold] = ()
    ) -> None:
        """Write the first *size* bytes of *slot*; likewise."""
        _wait(self._begin("WRITE", place, slot, size, deadline, held), deadline)

    def close(self) -> None:
        """Begin nothing any more. What moves goes on."""
        self._agent.close(_FAREWELL)

    def asking(self) -> Agent:
        """Another agent with the same plug-in, for questions, which block whoever asks.

        Raises:
            AdapterUnavailable: likewise.
        """
        threads = {"num_threads": str(ASKED)}
        return Agent(partial(self._made, threads), time.sleep, peers=False)

    def _made(self, more: Mapping[str, str] | None = None) -> Any:
        agent = made(f"hexkv-{token_hex(8)}", ())
        try:
            agent.create_backend(self._plugin, self._options | dict(more or {}))
        except Exception as error:
            # A wheel has plug-ins that want CUDA or a driver, and says "not found" of those.
            why = f"plug-in {self._plugin} cannot be loaded ({error})"
            raise AdapterUnavailable("nixl", why, "install what that plug-in needs") from error
        return agent

    def _begin(
        self,
        way: Literal["READ", "WRITE"],
        place: Place,
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
