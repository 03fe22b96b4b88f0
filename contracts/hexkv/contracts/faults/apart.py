"""A fault proxy in a process of its own.

For clients that keep the interpreter's lock while they wait for an answer: a proxy among
their own threads could not pass it on. Mooncake's is one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Self

from hexkv.contracts.faults.proxy import FaultProxy

_PATIENCE = 60.0
"""Seconds that the process is given to end."""


class ProxyApart:
    """A :class:`FaultProxy` in its own process, with the methods listed here.

    Args:
        target: host and port of the server.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        host, port = target
        self._process = subprocess.Popen(  # noqa: S603 - this very module
            [sys.executable, "-m", __name__, host, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        said = self._heard()
        if not said:
            self.close()
            raise OSError("the proxy did not start")
        self.address = said

    def latency(self, seconds: float) -> None:
        """See :meth:`FaultProxy.latency`."""
        self._tell("latency", float(seconds))

    def trickle(self, rate: float) -> None:
        """See :meth:`FaultProxy.trickle`."""
        self._tell("trickle", float(rate))

    def cut(self) -> None:
        """See :meth:`FaultProxy.cut`."""
        self._tell("cut")

    def stall(self) -> None:
        """See :meth:`FaultProxy.stall`."""
        self._tell("stall")

    def garbage(self, size: int) -> None:
        """See :meth:`FaultProxy.garbage`."""
        self._tell("garbage", size)

    def mend(self) -> None:
        """See :meth:`FaultProxy.mend`."""
        self._tell("mend")

    def close(self) -> None:
        """End the process, and every connection through it."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate(timeout=_PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, trouble: str, *numbers: float) -> None:
        """Have the process apply the fault, and wait until it is in effect."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([trouble, *numbers]) + "\n")
        self._process.stdin.flush()
        if self._heard() != "done":
            raise OSError("the proxy has ended")

    def _heard(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _run(host: str, port: str) -> None:
    """The main function of the process: execute commands until its standard input ends."""

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    with FaultProxy((host, int(port))) as proxy:
        say(proxy.address)
        for line in sys.stdin:
            match json.loads(line):
                case ["latency", float(seconds)]:
                    proxy.latency(seconds)
                case ["trickle", float(rate)]:
                    proxy.trickle(rate)
                case ["garbage", int(size)]:
                    proxy.garbage(size)
                case ["cut"]:
                    proxy.cut()
                case ["stall"]:
                    proxy.stall()
                case ["mend"]:
                    proxy.mend()
            say("done")


if __name__ == "__main__":
    _run(*sys.argv[1:])
