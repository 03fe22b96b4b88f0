"""The format of records: calls as lines of files. ``hexkv.plan.records`` reads them.

A record is a set of files that one process wrote. Each file begins with a line that describes the
record; then there is a line for each call, in JSON. Every line ends with its own CRC-32, so that
damage is found and not reported. Chunks are named by the first eight bytes of a digest that is
keyed by random bytes of that process, which are written nowhere: names of two records cannot be
joined with each other, or with keys anywhere else. Tokens are in no record. Version 1::

    {"do":"retrieve","t":1.25,"s":0.004,"n":1000,"at":[0,768],"keys":"...","crc":"00c0ffee"}

``t`` is seconds since the record began, ``s`` the duration, ``n`` the tokens of the prompt,
``at`` the positions that its chunks are between, ``keys`` eight bytes for each of these in base64,
``id`` in the same way the host's name of the request, ``key`` 1 if the host named the chunks
itself, ``tiers`` and ``misses`` tokens by tier and by reason, ``had`` those that a store found
there, and ``steps`` the durations of its steps. Empty values are left out.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from zlib import crc32

from hexkv.ports import RecordedCall, TierHealth

VERSION = 1
NAME_BYTES = 8
"""Of a chunk's name. Of ten million chunks two have the same one with a probability of 3e-6."""

PATTERN = re.compile(r"hexkv-(\d{8}T\d{6})-([0-9a-f]{8})-(\d{6})\.jsonl", re.ASCII)
"""Names of files: the time at which the record began, its id, and the number of the file."""


class Names:
    """Names in place of values that a record must not reveal."""

    def __init__(self, salt: bytes) -> None:
        self._keyed = blake2b(key=salt, digest_size=NAME_BYTES)

    def name(self, what: bytes) -> bytes:
        """Return ``NAME_BYTES`` bytes that reveal nothing of *what* without the salt."""
        hashed = self._keyed.copy()
        hashed.update(what)
        return hashed.digest()

    def named(self, all_of: Sequence[bytes]) -> str:
        """Return the names of *all_of*, one behind the other."""
        return b64encode(b"".join(map(self.name, all_of))).decode()


def seal(line: Mapping[str, object]) -> bytes:
    """Return *line* with its checksum, and a line's end."""
    text = json.dumps(line, separators=(",", ":"), ensure_ascii=True).encode()[:-1]
    return b'%b,"crc":"%08x"}\n' % (text, crc32(text))


def encode_call(call: RecordedCall, names: Names, began: float) -> bytes:
    """Return the line of *call*, in a record that began at *began* by the same clock."""
    line: dict[str, object] = {
        "do": call.kind.value,
        "t": round(call.began - began, 6),
        "s": round(call.seconds, 7),
        "n": call.tokens,
        "at": [call.start, call.end],
        "keys": names.named(call.keys),
        "id": names.named([call.request.encode()]) if call.request else "",
        "key": int(call.by_key),
        "tiers": dict(call.tiers),
        "misses": dict(call.misses),
        "had": call.present,
        "steps": [[step.name, step.tier, round(step.seconds, 7)] for step in call.steps],
    }
    return seal({name: value for name, value in line.items() if value or name in ("t", "s", "n")})


def encode_state(tiers: Sequence[TierHealth], time: float) -> bytes:
    """Return a line with the fill of *tiers*, *time* seconds after the record began."""
    rows = {tier.name: [tier.used_bytes, tier.budget_bytes, tier.chunks] for tier in tiers}
    return seal({"do": "state", "t": round(time, 3), "full": rows})
