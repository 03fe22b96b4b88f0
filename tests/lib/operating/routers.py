"""A router as the known ones are: follows KV events, asks for what it missed, and matches prompts.

Blocks are found by their tokens behind a parent, which may come later; a block that is removed
under any of its numbers is gone. A prompt is followed in memory first, and from there on in slower
media, never back.
"""

from contextlib import suppress

import msgspec
import zmq

from processes import until

MEDIA = ("CPU", "DISK")


class Blocks:
    """What a router has of one process."""

    def __init__(self, block):
        self.block = block
        self.clears = 0
        self.clear()

    def clear(self):
        self.steps = {}
        """Of each block its number: that of the block before, and its tokens."""
        self.there = {medium: {} for medium in MEDIA}
        """The number of each block that is there, by what it is a step to."""

    def apply(self, event):
        match event:
            case {"type": "AllBlocksCleared"}:
                self.clears += 1
                self.clear()
            case {"type": "BlockStored", "medium": medium, "lora_name": lora}:
                parent = event["parent_block_hash"]
                tokens, size = event["token_ids"], event["block_size"]
                assert size == self.block
                assert len(tokens) == size * len(event["block_hashes"])
                assert lora is None
                for i, number in enumerate(event["block_hashes"]):
                    assert 0 <= number < 1 << 64
                    step = self.steps[number] = parent, tuple(tokens[i * size : (i + 1) * size])
                    self.there[medium][step] = parent = number
            case {"type": "BlockRemoved", "medium": medium}:
                for number in event["block_hashes"]:
                    self.there[medium].pop(self.steps.get(number), None)
            case _:
                raise AssertionError(event)

    def match(self, tokens):
        """Tokens at the beginning of a prompt that are in memory, and in all."""
        steps = [tuple(tokens[i : i + self.block]) for i in range(0, len(tokens), self.block)]
        count, number, found = 0, None, []
        for medium in MEDIA:
            for step in steps[count : len(tokens) // self.block]:
                after = self.there[medium].get((number, step))
                if after is None:
                    break
                number = after
                count += 1
            found.append(count * self.block)
        return tuple(found)


class Router(Blocks):
    """One that listens. *loses* says of each batch, by how many came, whether it is lost.

    A *strict* one takes a replay only if it begins at the number that it asked for. Without a port
    for replays it asks for none.
    """

    def __init__(self, events, replay, block=16, loses=lambda _: False, strict=False):
        super().__init__(block)
        self.asked = 0
        self.expected = 0
        self.first = None
        self._came = 0
        self._loses = loses
        self._strict = strict
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.SUBSCRIBE, b"")
        self._sub.connect(f"tcp://127.0.0.1:{events}")
        self._ask = None if replay is None else self._context.socket(zmq.DEALER)
        if self._ask is not None:
            self._ask.connect(f"tcp://127.0.0.1:{replay}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._context.destroy(linger=0)

    def listen(self):
        """Take what has come."""
        while self._sub.poll(20):
            _, sequence, payload = self._sub.recv_multipart()
            self._came += 1
            if self._loses(self._came):
                continue
            number = int.from_bytes(sequence, "big")
            if number > self.expected and self._ask is not None:
                self._replay()
            if number >= self.expected:
                self._take(number, payload)

    def follow(self, reached):
        """Listen until *reached* gives true."""

        def listened():
            self.listen()
            return reached()

        until(listened)

    def _take(self, number, payload):
        seconds, events, rank = msgspec.msgpack.decode(payload)
        assert seconds > 0
        assert rank == 0
        for event in events:
            self.apply(event)
        self.expected = number + 1
        self.first = number if self.first is None else self.first

    def _replay(self):
        self.asked += 1
        self._ask.send_multipart((b"", self.expected.to_bytes(8, "big")))
        while True:
            assert self._ask.poll(60_000)
            empty, _, sequence, payload = self._ask.recv_multipart()
            assert empty == b""
            if sequence == b"\xff" * 8:
                return
            number = int.from_bytes(sequence, "big")
            if number == self.expected or (number > self.expected and not self._strict):
                self._take(number, payload)


def said(address):
    """The numbers of the events at an HTTP port."""
    from urllib.request import urlopen

    with suppress(OSError), urlopen(f"http://127.0.0.1:{address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
        rows = [line.rsplit(" ", 1) for line in lines if line.startswith("hexkv_events_")]
        return {name.removeprefix("hexkv_events_"): float(value) for name, value in rows}
    return {}
