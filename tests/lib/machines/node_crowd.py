"""Many clients of a node, and nodes, each a process forked from one that has imported everything.

What a client is to do is a function here. It says at its end what it saw, as a line of JSON.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from hexkv.adapters.node.client.client import NodeClient
from hexkv.contracts.chunk_cache._base import content, soon, specs
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, Reason

COMMON = specs(12)
"""What all clients store and read."""

TRIES = 0.2
"""Seconds that a call of :func:`call` may take."""


def checked(hold, wanted, seen):
    """Count what a hold gave, and every byte of it that is not its chunk's."""
    for lease, spec, reason in zip(hold.leases, wanted, hold.reasons, strict=True):
        seen["hits" if lease is not None else f"miss {reason.value}"] += 1
        seen["wrong"] += lease is not None and bytes(lease.payload) != content(spec)


def untidy(client, chance, seen, going_on):
    """Lease, fill, publish and pin, and let go of some of it."""
    while going_on():
        part = chance.sample(COMMON, 3)
        leases = client.allocate(part, "put", soon())
        for lease, spec in zip(leases, part, strict=False):
            lease.payload[:] = content(spec)
        if chance.random() < 0.7:
            client.publish(leases, None, soon())
        hold = client.hold(part, "get", soon())
        hold.wait(soon())
        checked(hold, part, seen)
        client.pin("pin", [part[0].key])
        for lease in [*leases, *hold.leases]:
            if lease is not None and chance.random() < 0.8:
                lease.release()
        if chance.random() < 0.8:
            hold.release()
        if chance.random() < 0.05:
            client.sweep("put")
            client.sweep("get")


def steady(client, chance, seen, going_on):
    """Read what all have stored, and store chunks of its own. How long each round took at most."""
    mine = specs(4, f"{chance.random()} ")
    while going_on():
        start = time.monotonic()
        with client.hold(COMMON, "get", soon()) as hold:
            hold.wait(soon())
            checked(hold, COMMON, seen)
        part = chance.sample(mine, 2)
        leases = client.allocate(part, "put", soon())
        seen["allocated"] += len(leases)
        for lease, spec in zip(leases, part, strict=False):
            lease.payload[:] = content(spec)
        publishing = client.publish(leases, None, soon())
        publishing.wait(soon())
        seen["published"] += sum(publishing.tiers.get("memory", [False, False]))
        for lease in leases:
            lease.release()
        seen["rounds"] += 1
        seen["longest"] = max(seen["longest"], time.monotonic() - start)


def timed(client, chance, seen, going_on):
    """Calls with a short deadline, each beside a sleep of as long: how late each was at most."""
    clock, sleep = SystemClock(), select.poll()

    def late(name, work, since, seconds):
        work()
        seen[name] = max(seen[name], clock.now() - since - seconds)

    down = 0.0
    while going_on():
        until = Deadline.after(clock, TRIES)
        hits = seen["hits"]

        def work(until=until):
            if chance.random() < 0.3:
                client.match([spec.key for spec in COMMON], until)
            elif chance.random() < 0.3:
                for lease in client.allocate(COMMON[:2], "put", until):
                    lease.release()
            with client.hold(COMMON[:3], "get", until) as hold:
                hold.wait(until)
                checked(hold, COMMON[:3], seen)

        late("call", work, clock.now(), TRIES)
        late("sleep", lambda: sleep.poll(20), clock.now(), 0.02)
        now = clock.now()
        if seen["hits"] == hits:
            down = down or now
        elif down:
            seen["downs"] += 1
            seen["back"] = max(seen["back"], now - down)
            down = 0.0


WORK = {"untidy": untidy, "steady": steady, "timed": timed}


def be_client(path, name, seed, stopped):
    """Do *name* until there is something to read from *stopped*."""
    client = NodeClient(Path(path), SystemClock())
    seen = Counter()
    over = select.poll()
    over.register(stopped, select.POLLIN | select.POLLHUP)
    os.write(1, f"up {os.getpid()} \n".encode())
    try:
        WORK[name](client, random.Random(seed), seen, lambda: not over.poll(0))
        client.sweep("put")
        client.sweep("get")
        seen["leases"] = sum(client.ledger().values())
        client.close()
    except BaseException as error:  # noqa: BLE001 - said to the test, which ends the process
        seen["raised"] += 1
        seen[repr(error)] += 1
    finally:
        os.write(1, (json.dumps({"pid": os.getpid(), **seen}) + "\n").encode())


def be_node(arguments):
    """``hexkv node``."""
    from hexkv.plugins.__main__ import main

    return main(["node", *arguments])


def serve():
    """Fork whatever is asked for, line by line, until the end of the input."""
    import hexkv.adapters.node.command  # noqa: F401 - so that no child has to

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who ends is gone
    for line in sys.stdin:
        kind, *rest = json.loads(line)
        if pid := os.fork():
            os.write(1, f"begun {pid}\n".encode())
            continue
        code = 1
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if kind == "node":
                log = os.open(rest[0], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                os.dup2(log, 1)
                os.dup2(log, 2)
                code = be_node(rest[1:])
            else:
                be_client(*rest)
                code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)


class Child:
    """A process that a crowd has forked."""

    def __init__(self, pid):
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def send(self, number):
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def wait(self, seconds=60):
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        assert poll.poll(seconds * 1000), f"process {self.pid} does not end"

    def kill(self):
        self.send(signal.SIGKILL)
        self.wait()

    def close(self):
        os.close(self._descriptor)


class Crowd:
    """Forks clients of the node at *path*, and nodes. A context: its children end with it."""

    def __init__(self, path):
        self.path = path
        self.said = []
        """What clients said at their ends."""

        self.children = []
        self._heard = []
        self._left = b""

    def __enter__(self):
        self._stopped, self._stop = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._stopped],
        )
        return self

    def __exit__(self, *_):
        for child in self.children:
            child.send(signal.SIGCONT)
            child.kill()
            child.close()
        for end in (self._process.stdin, self._process.stdout):
            end.close()
        self._process.wait(60)
        os.close(self._stopped)
        if self._stop is not None:
            os.close(self._stop)

    def client(self, work, seed):
        """A client that does *work*; it has connected when this returns."""
        child = self._fork([work and "client", str(self.path), work, seed, self._stopped])
        self._read(f"up {child.pid} ")
        return child

    def node(self, log, arguments):
        """A node, which may be on its way."""
        return self._fork(["node", str(log), *map(str, arguments)])

    def kill(self, child):
        self.children.remove(child)
        child.kill()
        child.close()

    def stop(self, clients):
        """Have all clients end; what those of *clients* say."""
        os.close(self._stop)
        self._stop = None
        wanted = {child.pid for child in clients}
        while len(found := [said for said in self.said if said["pid"] in wanted]) < len(wanted):
            self._line()
        total = Counter()
        for said in found:
            for name, value in said.items():
                if name in ("call", "sleep", "back", "longest"):
                    total[name] = max(total[name], value)
                elif name != "pid":
                    total[name] += value
        return total

    def _fork(self, request):
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        child = Child(int(self._read("begun ").removeprefix("begun ")))
        self.children.append(child)
        return child

    def _read(self, start):
        """The line that begins so; a child may have said it before its parent was told of it."""
        while True:
            for line in self._heard:
                if line.startswith(start):
                    self._heard.remove(line)
                    return line
            self._line()

    def _line(self):
        while b"\n" not in self._left:
            poll = select.poll()
            poll.register(self._process.stdout, select.POLLIN)
            assert poll.poll(60_000), "nobody says anything"
            part = os.read(self._process.stdout.fileno(), 65_536)
            assert part, "the process that forks others has gone"
            self._left += part
        line, _, self._left = self._left.partition(b"\n")
        if line.startswith(b"{"):
            self.said.append(json.loads(line))
        else:
            self._heard.append(line.decode())


def reason_words(seen):
    """The misses of *seen*, by reason."""
    return {word: seen[f"miss {word}"] for word in Reason if seen[f"miss {word}"]}


if __name__ == "__main__":
    serve()
