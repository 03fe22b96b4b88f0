"""The port ``Collective`` over torch.distributed: gloo, whose deadlines end an operation.

A group of its own, not vLLM's: a load that waits must not stand between the model's own
operations, and a group that gloo gave up is of no further use. The first member keeps a small
store at which members meet, at the start and after the loss of one.
"""

from __future__ import annotations

import fcntl
import logging
import socket
import struct
from contextlib import suppress
from datetime import timedelta
from threading import Event, Lock, Thread
from typing import Any

import torch
import torch.distributed

from hexkv.ports import MAX_HEAD, MAX_MESSAGE, CollectiveBroken, Deadline, InvalidRequest

log = logging.getLogger("vllm.hexkv")

dist: Any = torch.distributed
"""PyTorch's types are incomplete here."""

ADDRESS_BYTES = 64
"""The size of a meeting place's address, padded with zeros."""

_MEETING = 30.0
"""Seconds for which members that are there wait for one that is not, at a time."""

_LEAVING = 2.0
"""Seconds for which a member that leaves waits for an attempt to meet, at most."""

_PAUSE = 1.0
"""Seconds between two attempts to meet; twice as many after each that failed."""

_LONGEST_PAUSE = 60.0
_LOOK = 0.2
"""Seconds between two checks for a call of the first member to all members."""

_WATCH = 2.0
"""Seconds between two checks, while all are together, for another member that is apart.

One alone may be apart: its deadline passes, and the data of the first member has left that one in
time. It finds no chunk that only the first member keeps, so no load or message may ever show it.
"""

_LEAD = struct.Struct(f"<QQB{MAX_HEAD}s")
"""The lead before each message: the bytes of its data, twice, and its head.

gloo ends the whole process of a member that takes part with another number of bytes than the
first one. So a lead has always the same, and a member that doubts one skips what follows.
"""

_EVERY_BIT = (1 << 64) - 1

_ADDRESS_OF = 0x8915
"""Linux's SIOCGIFADDR."""

_ATTEMPT = "attempt"
_APART = "apart"
"""The last attempt whose group a member lost."""


def address_of(interface: str) -> str:
    """The IPv4 address of a network interface of this machine, ``lo`` for instance.

    Raises:
        OSError: there is no such interface, or it has none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(sock.fileno(), _ADDRESS_OF, asked)[20:24])


class MeetingPlace:
    """The first member's store, at one address alone. Closed by :meth:`close`."""

    def __init__(self, interface: str) -> None:
        """Listen at *interface*.

        Raises:
            OSError: it is not possible to listen there.
        """
        host = address_of(interface)
        listener = socket.socket(socket.AF_INET)
        try:
            listener.bind((host, 0))
            listener.listen(128)
            port = listener.getsockname()[1]
        except OSError:
            listener.close()
            raise
        # PyTorch's store would listen at every address of the machine.
        self._store: Any = dist.TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=_MEETING),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self.address = f"{host}:{port}"

    def close(self) -> None:
        """Stop listening. Twice is allowed."""
        self._store = None


class GlooCollective:
    """One member. Closed by :meth:`close`.

    Args:
        rank: of this member.
        size: of all.
        address: of the first member's meeting place.
        interface: over which this member talks to the others.
        place: the meeting place, at the first member. Closed with this.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        address: str,
        interface: str = "lo",
        place: MeetingPlace | None = None,
    ) -> None:
        self._rank, self._size = rank, size
        self._address, self._interface = address, interface
        self._place = place
        self._group: Any = None
        self._memory = bytearray()
        self._late: list[tuple[Any, object]] = []
        self._attempt = 0
        self._lock = Lock()
        self._closed, self._woken = Event(), Event()
        self._line: Any = None
        """The connection to the meeting place, for the thread below."""

        self._meet()
        self._meeting = Thread(target=self._stay_together, name="hexkv-meeting", daemon=True)
        self._meeting.start()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def whole(self) -> bool:
        return self._group is not None

    def send(self, head: bytes, data: memoryview, deadline: Deadline) -> None:
        if self._rank or len(head) > MAX_HEAD or data.nbytes > MAX_MESSAGE:
            raise InvalidRequest("the first member sends, and not more than there is room for")
        group, size = self._group, data.nbytes
        lead = _LEAD.pack(size, size ^ _EVERY_BIT, len(head), head)
        self._broadcast(group, bytearray(lead), deadline)
        if size:
            self._broadcast(group, bytearray(data) if data.readonly else data, deadline)

    def receive(self, limit: int, deadline: Deadline) -> tuple[bytes, memoryview]:
        if not self._rank or not 0 <= limit <= MAX_MESSAGE:
            raise InvalidRequest("only the other members receive, up to the limit of a message")
        group, lead = self._group, bytearray(_LEAD.size)
        self._broadcast(group, lead, deadline)
        size, again, length, head = _LEAD.unpack(lead)
        if size ^ again != _EVERY_BIT or size > limit or length > MAX_HEAD:
            self._break(group, "a message is too long")
            raise CollectiveBroken("a message is too long")
        if len(self._memory) < size:
            self._memory = bytearray(size)
        data = memoryview(self._memory)[:size]
        if size:
            self._broadcast(group, data, deadline)
        return head[:length], data.toreadonly()

    def part(self) -> None:
        self._break(self._group, "a received message is not valid")

    def close(self) -> None:
        self._closed.set()
        self._woken.set()
        with self._lock:
            group, self._group = self._group, None
        _end(group)
        self._meeting.join(_LEAVING)  # PyTorch does not release a thread that waits for members
        if self._place is not None:
            self._place.close()

    def _broadcast(
        self,
        group: Any,
        memory: bytearray | memoryview,
        deadline: Deadline,
    ) -> None:
        """One operation of a message, all of which are of one *group*."""
        seconds = deadline.remaining()
        if group is None:
            raise CollectiveBroken("a member was lost, and the group is not complete again")
        if not seconds:
            self._break(group, "the deadline had passed before")
            raise CollectiveBroken("the deadline had passed before")
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = timedelta(seconds=seconds)
        try:
            work = group.broadcast([tensor], options)
        except RuntimeError as error:
            self._memory = bytearray()
            self._break(group, str(error))
            raise CollectiveBroken(_first_line(error)) from error
        try:
            # Each of its steps has the time-out; this limits all of them together.
            work.wait(timedelta(seconds=seconds))
        except RuntimeError as error:
            if not work.is_completed():
                self._late = [late for late in self._late if not late[0].is_completed()]
                self._late.append((work, tensor))
            self._memory = bytearray()  # operations under way may still write to the former one
            self._break(group, str(error))
            raise CollectiveBroken(_first_line(error)) from error

    def _break(self, lost: Any, why: str) -> None:
        """Count as apart, if *lost* is the current group; another thread meets the others again."""
        with self._lock:
            if lost is None or lost is not self._group:
                return
            self._group = None
        self._woken.set()
        _end(lost)
        if not self._closed.is_set():
            log.warning(
                "ranks that load together are not connected, and each loads alone: %s",
                why.splitlines()[0][:200] if why else "no reason was given",
            )

    def _meet(self) -> None:
        """Meet for the first time; on failure, other attempts go on beside vLLM's start."""
        try:
            self._attempt = self._called()
            self._group = self._form(self._attempt)
        except RuntimeError as error:
            self._line = None
            log.warning("ranks that are to load together are not connected: %s", _first_line(error))

    def _stay_together(self) -> None:
        """Meet the others again whenever one is apart, until this is closed."""
        pause = _PAUSE
        while not self._closed.is_set():
            if self._woken.wait(self._until_next(pause)):
                self._woken.clear()
                continue
            try:
                self._look()
                pause = _PAUSE
            except (RuntimeError, ValueError):
                self._line = None
                pause = _PAUSE if self.whole else min(2 * pause, _LONGEST_PAUSE)
        self._line = None

    def _until_next(self, pause: float) -> float:
        """Seconds until the next check of the meeting place."""
        if self.whole:
            return _WATCH
        return _LOOK if self._rank else pause

    def _look(self) -> None:
        group = self._group
        if group is None:
            self._meet_again()
        elif self._others_apart():
            self._break(group, "another rank is apart")

    def _meet_again(self) -> None:
        if self._rank:
            self._to_meeting_place().set(_APART, str(self._attempt))
        attempt = self._called()
        if attempt <= self._attempt:
            return
        self._attempt = attempt
        group = self._form(attempt)
        with self._lock:
            if self._closed.is_set():
                _end(group)
            else:
                self._group = group
                log.info("all ranks that load together are connected")

    def _others_apart(self) -> bool:
        """True if another member has lost the group that this one has."""
        store = self._to_meeting_place()
        if self._rank:
            return int(store.get(_ATTEMPT)) > self._attempt
        return bool(store.check([_APART])) and int(store.get(_APART)) >= self._attempt

    def _called(self) -> int:
        """The number of the attempt to which the first member calls all members."""
        store = self._to_meeting_place()
        if self._rank:
            return int(store.get(_ATTEMPT))
        store.set(_ATTEMPT, str(self._attempt + 1))
        return self._attempt + 1

    def _to_meeting_place(self) -> Any:
        if self._line is None:
            self._line = self._store()
        return self._line

    def _store(self) -> Any:
        host, _, port = self._address.rpartition(":")
        timeout = timedelta(seconds=_MEETING)
        return dist.TCPStore(host, int(port), timeout=timeout, wait_for_workers=False)

    def _form(self, attempt: int) -> Any:
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=_MEETING)
        options._threads = 1
        options._devices = [dist.ProcessGroupGloo.create_device(interface=self._interface)]
        store = dist.PrefixStore(str(attempt), self._store())
        return dist.ProcessGroupGloo(store, self._rank, self._size, options)


def _end(group: Any) -> None:
    if group is not None:
        with suppress(RuntimeError):
            group.shutdown()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
