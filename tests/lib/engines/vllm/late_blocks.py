"""Copies into vLLM's blocks that end when a test says so, as a GPU's end some time later."""

from contextlib import contextmanager
from unittest.mock import patch

from hexkv.adapters.vllm.worker import held
from hexkv.kernels.blocks import BlockKV


class Copy:
    """A transfer of one scatter, which writes nothing before :meth:`finish`."""

    def __init__(self, write):
        self._write = write
        self.error = None
        """Raised by who waits."""

    def wait(self, deadline):
        if self.error is not None:
            raise self.error
        return self._write is None

    def finish(self):
        self._write()
        self._write = None


@contextmanager
def late_copies():
    """Gives a list of the copies that loads of held blocks begin, all of them late."""
    copies = []

    class LateKV(BlockKV):
        def scatter(self, spans, layers=None):
            write = super().scatter
            copies.append(Copy(lambda: write(spans, layers)))
            return copies[-1]

    with patch.object(held, "BlockKV", LateKV):
        yield copies
