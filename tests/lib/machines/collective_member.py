"""``python -m machines.collective_member RANK SIZE INTERFACE [ADDRESS]``: a member as a process.

The first line of its output is the address where members meet, the second says that it is there.
Then each line of its input is a call in JSON, ``{"call": "send", "size": n, "seconds": s}`` for
instance, which a line answers: whether the bytes came as they should, and how long it took.
"""

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from select import POLLIN, poll

from hexkv.adapters.vllm.worker.collective import GlooCollective, MeetingPlace
from hexkv.plugins.clock import SystemClock
from hexkv.ports import CollectiveBroken, Deadline
from processes import PATIENCE


def content(size):
    """So many bytes, whose place shows."""
    return b"".join(place.to_bytes(8) for place in range(size // 8))


class MemberProcess:
    """The other end of such a process; *machine* says where it runs."""

    def __init__(self, machine, rank, size, address=""):
        words = [str(rank), str(size), machine.interface, *([address] if address else [])]
        self.process = subprocess.Popen(
            [*machine.prefix, sys.executable, "-m", "machines.collective_member", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=Path(__file__).parents[1],
        )
        try:
            self.address = self.hear()
        except BaseException:
            self.close()
            raise

    def ask(self, call, **said):
        self.process.stdin.write(json.dumps({"call": call, **said}) + "\n")

    def hear(self):
        """What it says next, which a call that hangs would not."""
        waiting = poll()  # select() knows no descriptor above 1,023
        waiting.register(self.process.stdout, POLLIN)
        assert waiting.poll(PATIENCE * 1_000), f"it said nothing for {PATIENCE:.0f} s"
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.kill()
        self.process.communicate()


def main():
    rank, size, interface = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    place = None if rank else MeetingPlace(interface)
    address = sys.argv[4] if place is None else place.address
    _say(address)
    member = GlooCollective(rank, size, address, interface, place)
    _say(member.whole)
    for line in sys.stdin:
        said = json.loads(line)
        whole, right = content(said.pop("size", 0)), False
        began = time.monotonic()
        if said["call"] != "whole":
            with suppress(CollectiveBroken):
                right = _called(member, whole, **said)
        took = time.monotonic() - began
        _say({"right": right, "seconds": took, "whole": member.whole})


def _say(what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _called(member, whole, call, seconds):
    deadline = Deadline.after(SystemClock(), seconds)
    if call == "send":
        member.send(b"head", memoryview(whole), deadline)
        return True
    head, data = member.receive(len(whole), deadline)
    return head == b"head" and data == whole


if __name__ == "__main__":
    main()
