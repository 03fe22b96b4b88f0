"""Stores of files that lose the end of a frame of more than 2 GiB."""

from __future__ import annotations

import os

import pytest

from dict_store import DictContract, DictStore
from hexkv.ports import Hit, Miss, Reason, Stored
from mutants.rows import Wrong, broken


class FileStore(DictStore):
    """A correct one: a file for each frame, read and written by loops."""

    def write_one(self, item):
        with (self.root / item.key.hex()).open("wb", buffering=0) as file:
            self.put(file.fileno(), item.frame)
        self.medium[item.key] = b""
        return Stored(len(item.frame))

    def put(self, file, frame):
        done = 0
        while done < len(frame):
            done += os.pwrite(file, frame[done:], done)

    def read_one(self, index, key, sink, deadline):
        if key not in self.medium:
            return Miss()
        with (self.root / key.hex()).open("rb", buffering=0) as file:
            room = sink.room(index, self.length(os.fstat(file.fileno()).st_size))
            if room is None:
                return Miss(Reason.REFUSED)
            self.get(file.fileno(), room)
        return Hit(len(room))

    def length(self, size):
        return size

    def get(self, file, room):
        done = 0
        while done < len(room):
            done += os.preadv(file, [room[done:]], done)


class FileContract(DictContract):
    Make = FileStore
    largest = 3 << 30

    @pytest.fixture
    def store(self, medium, tmp_path):
        store = self.Make(medium)
        store.root = tmp_path
        yield store
        store.close()
        for left in tmp_path.iterdir():
            left.unlink()


ROWS = {
    "L1.33 writes once": Wrong(
        "What one system call has written is taken for all of it.",
        put=lambda self, file, frame: os.pwrite(file, frame, 0),
    ),
    "L1.33 reads once": Wrong(
        "What one system call has read is taken for all of it.",
        get=lambda self, file, room: os.preadv(file, [room], 0),
    ),
    "L1.33 counts in 31 bits": Wrong(
        "A length of more than 31 bits is cut.", length=lambda self, size: size & 0x7FFF_FFFF
    ),
}
globals().update(broken(__name__, FileContract, FileStore, ROWS))
