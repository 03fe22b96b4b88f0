"""A serde that makes very little of KV that repeats itself, and such KV."""

from layered import DEEP, PROMPT, empty


class Eight:
    """A serde for KV that repeats itself every eight bytes."""

    name, lossless, per_layer = "eight/1", True, False

    def bound(self, raw_bytes):
        return raw_bytes

    def encode(self, chunk, layout, tokens, into):
        into[:8] = bytes(chunk[:8])
        return 8

    def decode(self, payload, layout, tokens, into):
        into[:] = bytes(payload) * (len(into) // 8)


def repeating(tokens=PROMPT):
    device = empty(tokens, DEEP)
    for planes in device.memory:
        for plane in planes:
            plane[:] = b"12345678" * (len(plane) // 8)
    return device
