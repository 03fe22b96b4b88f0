"""Stores that tell a sink of what is not there, and one that tells it well."""

from __future__ import annotations

from dict_store import BadSector, CapableStore, DictContract
from hexkv.ports import PIECE, Hit, Miss, Reason


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


class TestTellsBeforeTheBytesAreThere(DictContract):
    """A read is begun, told of, and then waited for."""

    breaks = "L1.31"

    class Make(TellingStore):
        def bring(self, index, sink, room, frame, start, end):
            sink.filled(index, end)
            room[start:end] = frame[start:end]


class TestTellsOfMoreThanThereIs(DictContract):
    """It counts in whole pieces."""

    breaks = "L1.31"

    class Make(TellingStore):
        def bring(self, index, sink, room, frame, start, end):
            super().bring(index, sink, room, frame, start, end)
            sink.filled(index, start + PIECE)


class TestTellsOfEachPieceByItself(DictContract):
    """It tells how long each piece is, and not how far it has come."""

    breaks = "L1.31"

    class Make(TellingStore):
        def bring(self, index, sink, room, frame, start, end):
            room[start:end] = frame[start:end]
            sink.filled(index, end - start)


class TestMendsWhatItHasTold(DictContract):
    """What came garbled is fetched again, into the same buffer."""

    breaks = "L1.31"

    class Make(TellingStore):
        def bring(self, index, sink, room, frame, start, end):
            room[start:end] = bytes(end - start)
            sink.filled(index, end)
            room[start:end] = frame[start:end]


class TestTellsOfAnotherChunk(DictContract):
    """Every chunk of a batch is taken for the first."""

    breaks = "L1.31"

    class Make(TellingStore):
        def bring(self, index, sink, room, frame, start, end):
            room[start:end] = frame[start:end]
            sink.filled(0, end)
