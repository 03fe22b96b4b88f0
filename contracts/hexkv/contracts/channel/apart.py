"""A peer in a process of its own, which can be stopped and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from hexkv.contracts.channel.blocks import Blocks, BlockSink
from hexkv.contracts.channel.source import HeldFrames
from hexkv.contracts.doubles import chunk_key
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import (
    Deadline,
    MemoryProvider,
    Part,
    Peer,
    SupportsRegistration,
    TransferChannel,
)

_PATIENCE = 60.0
"""Seconds that a process has to execute a command."""


@dataclass(frozen=True)
class Recipe:
    """How another process opens a channel of the tested kind, by an installed adapter."""

    channel: str
    """The adapter's name."""

    settings: Mapping[str, object] = field(default_factory=dict)
    memory: str = ""
    """The memory provider that its blocks come from; empty for plain memory."""


class PeerApart:
    """A process that serves frames, and reads on command. A context manager.

    Args:
        recipe: how it opens its channel.
        size: bytes of its blocks, and of its frames.
        names: of the chunks that it holds.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, recipe: Recipe, size: int, *names: str) -> None:
        words = json.dumps({"recipe": asdict(recipe), "size": size, "names": names})
        self._process = subprocess.Popen(  # noqa: S603 - this very module
            [sys.executable, "-c", f"from {__name__} import main; main()", words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        first = self._heard()
        if not first:
            self.close()
            raise OSError("the peer did not start")
        self.peer = Peer(*json.loads(first))

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def stop(self) -> None:
        """Stop it where it is (SIGSTOP); none of its threads runs when this returns."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def resume(self) -> None:
        """Let it run again."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._process.kill()
        self._process.wait(_PATIENCE)

    def read_and_stop(self, peer: Peer, name: str) -> None:
        """Have it read a chunk from *peer*, and stop in the middle of that. Waits until it has."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([*peer, name]) + "\n")
        self._process.stdin.flush()
        os.waitpid(self._process.pid, os.WUNTRACED)

    def close(self) -> None:
        """End the process, also in the middle of a command."""
        self._process.kill()
        self._process.wait(_PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # its last output is not needed
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _heard(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def opened(recipe: Recipe, size: int, count: int) -> Iterator[tuple[TransferChannel, Blocks]]:
    """A channel by *recipe*, and *count* blocks of *size* bytes in memory that it may use."""
    registry, context = discover(), OpenContext(SystemClock())
    channel: TransferChannel = registry.open("channel", recipe.channel, recipe.settings, context)
    try:
        if not recipe.memory:
            yield channel, Blocks.on_heap(count, size)
            return
        provider: MemoryProvider = registry.open("memory", recipe.memory, {}, context)
        region = provider.allocate(count * size)
        if isinstance(channel, SupportsRegistration):
            channel.register(region)
        yield channel, Blocks(region.buffer, size)
    finally:
        channel.close()


def main() -> None:
    """The main function of the process: serve commands until its standard input ends."""
    asked: Mapping[str, Any] = json.loads(sys.argv[1])
    recipe, size, names = Recipe(**asked["recipe"]), asked["size"], asked["names"]
    with opened(recipe, size, len(names) + 2) as (channel, blocks):
        source = HeldFrames(blocks)
        for name in names:
            source.put(name, size)
        peer = channel.serve(source, os.getpid())
        sys.stdout.write(json.dumps(peer) + "\n")
        sys.stdout.flush()
        for line in sys.stdin:
            address, generation, name = json.loads(line)
            stopping = BlockSink(blocks, during=lambda: os.kill(os.getpid(), signal.SIGSTOP))
            until = Deadline.after(SystemClock(), _PATIENCE)
            wanted = [Part(chunk_key(name))]
            channel.read(Peer(address, generation), wanted, stopping, until)
            stopping.release()
