"""Killed between any two system calls: whole frames, an exact count, and nothing left behind."""

import subprocess
import sys
from itertools import product

import pytest

from depth import thorough
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.ports import Hit, Item, Stored

CAPACITY = 12 * 4096

# One process for all moments: forking is cheap where importing is not. Each child runs the
# same calls on the directory and is killed at the system call whose number it was given.
KILLED_EVERYWHERE = """
import fcntl, mmap, os, signal, sys
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.ports import Item, Stored

root, capacity, direct, step = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
room = memoryview(mmap.mmap(-1, 8 * 4096))
calls = 0

def watch(module, name, last):
    real = getattr(module, name)
    def call(*arguments, **named):
        global calls
        calls += 1
        if calls == last:
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "pwritev" and len(arguments[1][0]) > 4096:
            arguments = (arguments[0], [arguments[1][0][:4096]], arguments[2])
        return real(*arguments, **named)
    setattr(module, name, call)

def frame(name, size):
    room[:] = bytes([name]) * len(room)
    return room[: size * 4096]

def live(say, last):
    for name in ("open", "posix_fallocate", "pwritev", "close", "replace", "unlink", "pread",
                 "pwrite", "stat", "makedirs"):
        watch(os, name, last)
    for name in ("flock", "fcntl"):
        watch(fcntl, name, last)
    store = DiskStore(root, capacity=capacity, direct=direct)
    for turn in range(3):
        for name in range(4):
            (outcome,) = store.write(
                [Item(chunk_key(str(name)), frame(name, 1 + (turn + name) % 4))], deadline())
            if isinstance(outcome, Stored):
                os.write(say, b"+%d" % name)
        os.write(say, b"-%d" % turn)
        store.delete([chunk_key(str(turn))], deadline())
        store.quarantine([chunk_key("3")], deadline()) if turn == 1 else None
    store.close()
    return calls

for last in range(int(sys.argv[5]), 100_000, step):
    hear, say = os.pipe()
    child = os.fork()
    if not child:
        live(say, last)
        os._exit(0)
    os.close(say)
    _, status = os.waitpid(child, 0)
    said = os.read(hear, 65536).decode()
    os.close(hear)
    print(last, said or ".", flush=True)
    if sys.stdin.readline() != "on\\n" or not os.WIFSIGNALED(status):
        break
"""


def whole(store: DiskStore) -> dict[bytes, bytes]:
    """Every frame, read back; each must be of one piece."""
    found = {}
    for entry in store.scan():
        sink = ListSink()
        assert store.read([entry.key], sink, deadline()) == [Hit(entry.size)]
        frame = sink.data(0)
        assert frame == frame[:1] * len(frame)
        assert entry.key == chunk_key(str(frame[0]))
        found[entry.key] = frame
    return found


def acknowledged(said: str) -> set[bytes]:
    """Keys that were stored, and that nothing was begun to be done to since."""
    kept = set()
    for place in range(0, len(said) - 1, 2):
        key = chunk_key(said[place + 1])
        if said[place] == "+":
            kept.add(key)
        else:
            kept -= {key, chunk_key("3")}
    return kept


@pytest.mark.parametrize(
    ("direct", "alone", "step"),
    [("auto", True, 12), *thorough(*product(("auto", "off"), (True, False), (2,)))],
)
def test_a_kill_at_any_system_call_costs_no_acknowledged_frame_and_leaves_nothing(
    tmp_path, direct, alone, step
):
    other = None if alone else DiskStore(tmp_path, capacity=CAPACITY)
    # Every other moment alone, the ones between with another store beside it.
    arguments = [str(tmp_path), str(CAPACITY), direct, str(step), "1" if alone else "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED_EVERYWHERE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    deaths = 0
    with process:
        for line in process.stdout:
            deaths += 1
            store = other or DiskStore(tmp_path, capacity=CAPACITY)
            if other is not None:
                DiskStore(tmp_path).close()  # buries the dead, as any newcomer does
            frames = whole(store)
            assert acknowledged(line.split()[1]) <= frames.keys()
            assert store.used_bytes == sum(map(len, frames.values())) <= CAPACITY
            assert list(tmp_path.rglob("*.tmp")) == []
            assert len(list(tmp_path.glob(".*.lock"))) == 1
            # Nothing of the dead is reserved any more: all of the capacity can be had.
            store.delete(list(frames), deadline())
            everything = memoryview(bytes(CAPACITY))
            assert store.write([Item(chunk_key("0"), everything)], deadline()) == [Stored(CAPACITY)]
            store.delete([chunk_key("0")], deadline())
            if other is None:
                store.close()
            process.stdin.write("on\n")
            process.stdin.flush()
    if other is not None:
        other.close()
    assert deaths > 200 / step
