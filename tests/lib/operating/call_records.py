"""Records of calls as files, without a cache that was called."""

import random

from hexkv.adapters.observe.records.format import Names, encode_call, encode_state, seal
from hexkv.ports import ChunkKey, RecordedCall

CHUNK = 16


def keys_of(*numbers):
    return [ChunkKey(random.Random(number).randbytes(48)) for number in numbers]


def a_call(kind, began, keys, *, extra=0, start=0, tiers=None, seconds=0.25, **more):
    end = start + CHUNK * len(keys)
    return RecordedCall(kind, began, seconds, end + extra, keys, start, end, tiers or {}, **more)


def write_record(
    path, calls, *, began=1_700_000_000.0, tiers=(), rate=None, record="00c0ffee", lost=0
):
    """A record of *calls*, whose times count from zero."""
    head = {"do": "record", "version": 1, "record": "00c0ffee", "file": 0, "began": 1.7e9}
    about = {"model": "toy <&>", "chunk_tokens": CHUNK, "chunk_bytes": 8192, "hexkv": "0"}
    names = Names(b"salt")
    lines = [seal(head | about | {"compute_rate": rate})]
    lines += [encode_call(one, names, 0.0) for one in calls]
    lines += [encode_state(tiers, at) for at in (1.0, 300.0) if tiers]
    lines += [seal({"do": "lost", "calls": lost})] if lost else []
    path.write_bytes(b"".join(lines))
    return path
