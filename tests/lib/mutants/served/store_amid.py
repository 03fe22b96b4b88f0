"""Stores that go wrong when their service fails amid an answer, and that hide its failures."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread

from dict_store import CapableStore
from hexkv.ports import Failed, Hit, Miss, Reason, Stored, StoreFull, StoreUnreachable
from mutants.rows import Wrong, broken
from mutants.served.store_faults import ServedContract


class Streaming(CapableStore):
    """A store whose frames arrive after there is a buffer for them."""

    def read_one(self, index, key, sink, deadline):
        frame = self.fetch(key)
        if frame is None:
            return Miss()
        room = sink.room(index, self.size(frame))
        if room is None:
            return Miss(Reason.REFUSED)
        return self.arrive(room, frame, deadline)

    def arrive(self, room, frame, deadline):
        self.reach(deadline)
        self.fill(room, frame)
        return Hit(len(frame))


def fills_the_buffer_when_it_goes_on(self, real, room, frame, deadline):
    def later():
        with self.medium.turn:
            self.medium.turn.wait_for(lambda: self.closed or self.medium.is_well(), 60.0)
        room[:] = frame

    try:
        return real(room, frame, deadline)
    except StoreUnreachable:
        self.receiver = Thread(target=later, daemon=True)
        self.receiver.start()
        raise


def goes_on_with_the_late_answer(self, real, deadline):
    real(deadline)
    if self.receiver is not None:
        self.receiver.join(60.0)


def takes_what_came_for_whole(self, real, room, frame, deadline):
    try:
        return real(room, frame, deadline)
    except StoreUnreachable:
        room[: len(frame) // 2] = frame[: len(frame) // 2]
        return Hit(len(frame))


def counts_the_rest_as_misses(self, real, room, frame, deadline):
    with suppress(StoreUnreachable):
        return real(room, frame, deadline)
    return Miss()


def misses_what_is_out_of_reach(self, real, keys, sink, deadline):
    with suppress(StoreUnreachable):
        return real(keys, sink, deadline)
    return [Miss()] * len(keys)


def denies_what_is_out_of_reach(self, real, keys, deadline):
    with suppress(StoreUnreachable):
        return real(keys, deadline)
    return [False] * len(keys)


def waits_for_each_byte_anew(self, real, deadline):
    if self.medium.trickling:
        with self.medium.turn:
            self.medium.turn.wait_for(lambda: self.closed or not self.medium.trickling, 60.0)
        if self.closed:
            raise StoreUnreachable("closed")
    real(deadline)


def says_that_it_has_replaced(self, real, item):
    outcome = real(item)
    if isinstance(outcome, Failed) and self.has(item.key):
        return Stored(len(item.frame))
    return outcome


def tears_what_it_replaces(self, real, item):
    outcome = real(item)
    old = self.medium.get(item.key)
    if isinstance(outcome, Failed) and old is not None:
        half = len(item.frame) // 2
        self.medium[item.key] = bytes(item.frame[:half]) + old[half:]
    return outcome


def grows_when_it_replaces(self, real, item):
    if self.medium.full and self.has(item.key):
        self.publish(self.name(item.key), bytes(item.frame[:4096]))
        return Failed(StoreFull("no room"))
    return real(item)


STREAMING = {
    "L4.11 fills the buffer when it goes on": Wrong(
        "An answer that comes after the deadline goes where it was to go.",
        receiver=None,
        arrive=fills_the_buffer_when_it_goes_on,
        reach=goes_on_with_the_late_answer,
    ),
    "L4.11 takes what came for whole": Wrong(
        "The end of the connection is the end of the frame.", arrive=takes_what_came_for_whole
    ),
    "L4.11 counts the rest as misses": Wrong(
        "A chunk whose answer broke off is absent.", arrive=counts_the_rest_as_misses
    ),
}
globals().update(broken(__name__, ServedContract, Streaming, STREAMING))


SERVED = {
    "L4.6 misses what is out of reach": Wrong(
        "A read that fails is a miss.", read=misses_what_is_out_of_reach
    ),
    "L4.6 denies what is out of reach": Wrong(
        "A chunk is absent if its service does not answer.", contains=denies_what_is_out_of_reach
    ),
    "L4.6 says that it deleted nothing": Wrong(
        "What cannot be deleted was not there.", delete=denies_what_is_out_of_reach
    ),
    "L4.5 waits for each byte anew": Wrong(
        "The time-out is one of each receive.", reach=waits_for_each_byte_anew
    ),
    "L4.8 says that it has replaced": Wrong(
        "A chunk that is there need not be written.", write_one=says_that_it_has_replaced
    ),
    "L4.8 tears what it replaces": Wrong(
        "It writes over the old frame until there is no room.", write_one=tears_what_it_replaces
    ),
    "L4.8 leaves a part": Wrong(
        "It leaves the part that there was room for.", write_one=grows_when_it_replaces
    ),
}
globals().update(broken(__name__, ServedContract, CapableStore, SERVED))
