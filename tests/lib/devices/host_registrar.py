"""A stand-in for the driver with which memory of the host is registered, as strict as CUDA's."""

import ctypes
from pathlib import Path


class HostRegistrar:
    """Counts registered ranges, and refuses those that cudaHostRegister refuses."""

    def __init__(self, *, refuse=False):
        self.refuse = refuse
        self.ranges = {}
        self.last = b""
        """The first bytes of the memory that was unregistered last."""

        self.wrong = []
        """Calls that CUDA would have refused; a program never makes one."""

    def register(self, address, size):
        if self.refuse:
            raise OSError("cudaHostRegister gave error 2")
        if any(at < address + size and address < at + had for at, had in self.ranges.items()):
            self.wrong.append(("register", address, 712))
        if not writable(address, size):
            self.wrong.append(("register", address, 1))
        self.ranges[address] = size

    def unregister(self, address):
        size = self.ranges.pop(address, 0)
        if size and writable(address, size):
            self.last = ctypes.string_at(address, 5)
        else:
            self.wrong.append(("unregister", address, 713))


def writable(address, size):
    """True if the process may read and write all of a range."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_ = line.split()
        start, end = (int(edge, 16) for edge in place.split("-"))
        if start <= address < end and rights.startswith("rw"):
            size -= end - address
            if size <= 0:
                return True
            address = end
    return False
