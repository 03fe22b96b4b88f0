"""What clients tell the node once: tokens of prompts, and namespaces of chunks.

A node knows keys, which do not reveal their tokens; a publisher of events about its chunks needs
the tokens. A client sends them once for each chunk, in pieces that fit a socket's buffer, until the
node answers that it has no use for them. The node hashes them again: it refuses keys of other
tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from struct import pack
from threading import Lock
from typing import TYPE_CHECKING
from weakref import ref

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.wire import Status
from hexkv.adapters.node.wire import MAX_SPACES, Reader, Space, Verb, pack_space
from hexkv.ports import KEY_BYTES, ChunkKey, ChunkSpec, Clock, Deadline, NamedPrompt

if TYPE_CHECKING:
    from hexkv.adapters.net.rpc.answer import Answer
    from hexkv.adapters.node.client.link import NodeLink

_TOKEN_BYTES = 4
_PIECE = 64 << 10
"""Bytes of tokens in one message, or one chunk if that is longer."""

_SENDING = 0.25
"""Seconds for a message; tokens not sent by then are sent when the prompt comes again."""

_SAID = 1 << 16
"""Chunks that are remembered as sent."""

_AGAIN = 60.0
"""Seconds after which a chunk is sent again: a node that was taken over has forgotten them."""


class PromptTeller:
    """A client's side. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._link: ref[NodeLink] | None = None
        self._said: set[ChunkKey] = set()
        self._since = 0.0
        self._first: Answer | None = None
        self._wanted = True

    def named(self, prompt: NamedPrompt, link: NodeLink) -> None:
        """Send the new chunks of a prompt over *link*, if the node wants them."""
        keys = prompt.keys
        with self._lock:
            self._turn_to(link)
            if not self._wanted or self._said.issuperset(keys):
                return
            first = next(i for i, key in enumerate(keys) if key not in self._said)
        while first < len(keys):
            start = prompt.ends[first - 1] if first else 0
            last = first + 1
            while last < len(keys) and (prompt.ends[last] - start) * _TOKEN_BYTES <= _PIECE:
                last += 1
            body = pack_named(prompt, first, last)
            answer = link.ask(Verb.NAMED, body, Deadline.after(self._clock, _SENDING))
            if answer is None:
                return
            with self._lock:
                self._said.update(keys[first:last])
                self._first = self._first or answer
            first = last

    def _turn_to(self, link: NodeLink) -> None:
        """Start over if the node has changed, or may have forgotten its chunks."""
        now = self._clock.now()
        if self._link is None or self._link() is not link:
            self._link, self._first, self._wanted = ref(link), None, True
            self._said.clear()
        elif now >= self._since + _AGAIN or len(self._said) > _SAID:
            self._said.clear()
        if not self._said:
            self._since = now
        if self._first is not None and self._first.final:
            self._wanted = _is_wanted(self._first)


def _is_wanted(answer: Answer) -> bool:
    """False if the node publishes no events, or does not know the verb."""
    if answer.status is not Status.DONE:
        return answer.status is not Status.INVALID
    try:
        return bool(Reader(answer.body).number("Q"))
    except BadMessage:
        return False


def pack_named(prompt: NamedPrompt, first: int, last: int) -> bytes:
    """Return chunks ``[first, last)`` of a prompt, as the body of ``NAMED``."""
    start = prompt.ends[first - 1] if first else 0
    after = prompt.keys[first - 1] if first else prompt.after
    identity = prompt.identity.encode()
    keys, ends = prompt.keys[first:last], prompt.ends[first:last]
    return b"".join(
        (
            pack("<HB", len(identity), after is not None),
            identity,
            after or b"",
            pack("<I", len(keys)),
            *keys,
            pack(f"<{len(ends)}I", *(end - start for end in ends)),
            prompt.tokens[start * _TOKEN_BYTES : ends[-1] * _TOKEN_BYTES],
        )
    )


def read_named(body: bytes) -> NamedPrompt:
    """Read the body of ``NAMED``.

    Raises:
        BadMessage: it is none.
    """
    reader = Reader(body)
    size, behind = reader.column("H", 1)[0], reader.number("B")
    identity = reader.plain(size)
    after = ChunkKey(reader.data(KEY_BYTES)) if behind else None
    count = reader.count(KEY_BYTES + 4)
    keys, ends = reader.keys(count), reader.column("I", count)
    if not count or any(a >= b for a, b in zip((0, *ends), ends, strict=False)):
        raise BadMessage("chunks that are not one behind the other")
    if reader.left != ends[-1] * _TOKEN_BYTES:
        raise BadMessage(f"{reader.left} bytes of {ends[-1]} tokens")
    return NamedPrompt(identity, keys, ends, memoryview(reader.data(reader.left)), after)


class Spaces:
    """The numbers of namespaces on one link; the least recently used is replaced."""

    def __init__(self) -> None:
        self.link: ref[NodeLink] | None = None
        self._numbers: OrderedDict[tuple[str, int, str], tuple[int, Space]] = OrderedDict()

    def numbers(self, link: NodeLink, specs: Sequence[ChunkSpec], deadline: Deadline) -> list[int]:
        """Return a number for each chunk; send new ones to the node. Under the client's lock."""
        if self.link is None or self.link() is not link:
            self.link = ref(link)
            self._numbers.clear()
        found: list[int] = []
        before: tuple[str, int, str] | None = None
        for spec in specs:
            # By the identity of the layout, which is kept alive beside it: hashing takes longer.
            name = spec.identity, id(spec.layout), spec.serde
            if name != before:
                number = self._number(link, name, spec, deadline)
                before = name
            found.append(number)
        return found

    def _number(
        self, link: NodeLink, name: tuple[str, int, str], spec: ChunkSpec, deadline: Deadline
    ) -> int:
        known = self._numbers.get(name)
        if known is not None:
            self._numbers.move_to_end(name)
            return known[0]
        if len(self._numbers) < MAX_SPACES:
            number = len(self._numbers)
        else:
            number = self._numbers.popitem(last=False)[1][0]
        space = Space(spec.identity, spec.layout, spec.serde)
        link.tell(Verb.SPACE, pack_space(number, space), deadline)
        self._numbers[name] = number, space
        return number
