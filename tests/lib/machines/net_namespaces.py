"""Machines of a test: network namespaces with addresses of their own, joined by a bridge.

Only what is made here is touched, and it is gone at the end. A cut swallows packets, as a broken
cable does: nobody is told. The loopback interface of each namespace goes on.
"""

import os
import subprocess
from contextlib import ExitStack, contextmanager
from itertools import count

import pytest

_NUMBERS = count()


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Machine:
    """A namespace: what runs in it has an address that the others reach."""

    def __init__(self, name, address, bridge, opened):
        self.name, self.address = name, address
        self._inner, self._outer = f"{name}i", f"{name}o"
        _ip("netns", "add", name)
        opened.callback(_ip, "netns", "del", name)
        _ip("link", "add", self._outer, "type", "veth", "peer", "name", self._inner)
        opened.callback(subprocess.run, ["ip", "link", "del", self._outer], capture_output=True)
        _ip("link", "set", self._outer, "master", bridge, "up")
        _ip("link", "set", self._inner, "netns", name)
        self.run("ip", "addr", "add", f"{address}/24", "dev", self._inner)
        for device in ("lo", self._inner):
            self.run("ip", "link", "set", device, "up")

    @property
    def interface(self):
        """By which the others reach it."""
        return self._inner

    @property
    def prefix(self):
        """Begins a command that is to run here."""
        return ["ip", "netns", "exec", self.name]

    def run(self, *words):
        subprocess.run([*self.prefix, *words], check=True, capture_output=True, text=True)

    def cut(self, *, hears=False):
        """Have nothing leave, and, unless it *hears*, nothing arrive."""
        # A bucket that is smaller than any packet swallows all of them.
        small = ["root", "tbf", "rate", "1kbit", "burst", "1", "latency", "1ms"]
        self.run("tc", "qdisc", "replace", "dev", self._inner, *small)
        if not hears:
            words = ["tc", "qdisc", "replace", "dev", self._outer, *small]
            subprocess.run(words, check=True, capture_output=True, text=True)

    def slow(self, rate):
        """Have what leaves go at so many bits a second."""
        shape = ["rate", str(rate), "burst", "64kb", "latency", "200ms"]
        self.run("tc", "qdisc", "replace", "dev", self._inner, "root", "tbf", *shape)

    def mend(self):
        for words in (
            [*self.prefix, "tc", "qdisc", "del", "dev", self._inner, "root"],
            ["tc", "qdisc", "del", "dev", self._outer, "root"],
        ):
            subprocess.run(words, capture_output=True, check=False)


@contextmanager
def machines(count_of):
    """So many machines that reach each other. Skips the test where none can be made."""
    number = next(_NUMBERS)
    mark = f"hx{os.getpid() % 100000}{number}"
    net = f"10.{64 + os.getpid() % 128}.{number % 250}"
    with ExitStack() as opened:
        try:
            _ip("link", "add", f"{mark}b", "type", "bridge")
            opened.callback(_ip, "link", "del", f"{mark}b")
            _ip("link", "set", f"{mark}b", "up")
            found = [
                Machine(f"{mark}{n}", f"{net}.{n + 1}", f"{mark}b", opened) for n in range(count_of)
            ]
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            pytest.skip(f"no network namespaces can be made: {said.strip()[:100]}")
        yield found
