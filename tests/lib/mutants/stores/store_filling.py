"""Stores that tell a sink of what is not there, and one that tells it well."""

from __future__ import annotations

from dict_store import BadSector, CapableStore, DictContract
from hexkv.ports import PIECE, Hit, Miss, Reason
from mutants.rows import Wrong, broken


class TellingStore(CapableStore):
    """Fills a buffer piece by piece, and says so."""

    def read_one(self, index, key, sink, deadline):
        frame = self.fetch(key)
        if frame is None or isinstance(frame, BadSector):
            return super().read_one(index, key, sink, deadline)
        room = sink.room(index, self.size(frame))
        if room is None:
            return Miss(Reason.REFUSED)
        for start in range(0, len(frame), PIECE):
            self.bring(index, sink, room, frame, start, min(start + PIECE, len(frame)))
        return Hit(len(frame))

    def bring(self, index, sink, room, frame, start, end):
        room[start:end] = frame[start:end]
        sink.filled(index, end)


def tells_before_the_bytes_are_there(self, index, sink, room, frame, start, end):
    sink.filled(index, end)
    room[start:end] = frame[start:end]


def tells_of_more_than_there_is(self, real, index, sink, room, frame, start, end):
    real(index, sink, room, frame, start, end)
    sink.filled(index, start + PIECE)


def tells_of_each_piece_by_itself(self, index, sink, room, frame, start, end):
    room[start:end] = frame[start:end]
    sink.filled(index, end - start)


def mends_what_it_has_told(self, index, sink, room, frame, start, end):
    room[start:end] = bytes(end - start)
    sink.filled(index, end)
    room[start:end] = frame[start:end]


def tells_of_another_chunk(self, index, sink, room, frame, start, end):
    room[start:end] = frame[start:end]
    sink.filled(0, end)


ROWS = {
    "L1.31 tells before the bytes are there": Wrong(
        "A read is begun, told of, and then waited for.", bring=tells_before_the_bytes_are_there
    ),
    "L1.31 tells of more than there is": Wrong(
        "It counts in whole pieces.", bring=tells_of_more_than_there_is
    ),
    "L1.31 tells of each piece by itself": Wrong(
        "It tells how long each piece is, and not how far it has come.",
        bring=tells_of_each_piece_by_itself,
    ),
    "L1.31 mends what it has told": Wrong(
        "What came garbled is fetched again, into the same buffer.", bring=mends_what_it_has_told
    ),
    "L1.31 tells of another chunk": Wrong(
        "Every chunk of a batch is taken for the first.", bring=tells_of_another_chunk
    ),
}
globals().update(broken(__name__, DictContract, TellingStore, ROWS))
