"""Machines that are none: network namespaces with addresses of their own, on one bridge.

Nothing of the machine's own network is touched: the bridge is in a namespace, too. Takes root.
"""

import os
import shutil
import subprocess
from itertools import count

NETWORK = "10.77.{}.{}"
_NUMBERS = count(1)


def possible():
    """Whether this process may make namespaces."""
    if os.geteuid() or shutil.which("ip") is None:
        return False
    name = f"hexkv-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return False
    _ip("netns", "del", name)
    return True


class Machine:
    """A namespace with one address."""

    def __init__(self, name, address):
        self.name, self.address = name, address

    @property
    def prefix(self):
        """What runs a command there."""
        return ["ip", "netns", "exec", self.name]

    def unplug(self):
        """Cut it off from all others, both ways."""
        _ip("-n", self.name, "link", "set", "eth0", "down")

    def plug(self):
        _ip("-n", self.name, "link", "set", "eth0", "up")

    def say_nothing_to(self, other):
        """Lose what it sends to *other*, which is heard all the same."""
        _ip("-n", self.name, "route", "add", "blackhole", f"{other.address}/32")

    def speak_to(self, other):
        _ip("-n", self.name, "route", "del", "blackhole", f"{other.address}/32")


class Machines:
    """Some of them. A context manager."""

    def __init__(self, number):
        which = f"{os.getpid()}-{next(_NUMBERS)}"
        self._hub = f"hexkv-{which}-hub"
        network = os.getpid() % 250
        self._machines = [
            Machine(f"hexkv-{which}-{n}", NETWORK.format(network, n + 1)) for n in range(number)
        ]

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self._machines

    def __exit__(self, *_):
        for name in (self._hub, *(machine.name for machine in self._machines)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def _make(self):
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "bridge", "up")
        for number, machine in enumerate(self._machines):
            _ip("netns", "add", machine.name)
            port = f"port{number}"
            there = ["peer", "name", "eth0", "netns", machine.name]
            _ip("-n", self._hub, "link", "add", port, "type", "veth", *there)
            _ip("-n", self._hub, "link", "set", port, "master", "bridge", "up")
            _ip("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", machine.name, "link", "set", link, "up")


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)
