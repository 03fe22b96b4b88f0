"""``python -m peers.peer_process``: an engine of the tests in a process that may be killed.

The first line of its input is its configuration. Then each line is a command, answered by a line:
``store N`` has it store the prompt of that number, and ``read N`` retrieve it: how many tokens
came, which were right, and in how many seconds. ``lent`` says how many bytes it gave to peers.
``lie ABOUT`` has it lie to them about one of :data:`peers.liars.PEERS`, and ``lie`` tell the truth.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from configured import LAYOUT, NAMESPACE, computed, prompt
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import CounterName
from peers.liars import LyingPeer


class PeerProcess:
    """The other end of such a process."""

    def __init__(self, config, prefix=(), **environment):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "peers.peer_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env=os.environ | environment,
        )
        self.address = self._ask(json.dumps(config))

    def store(self, number):
        """Have it store a prompt."""
        assert self._ask(f"store {number}") == "stored"

    def read(self, number):
        """The tokens that it can retrieve of a prompt, and the seconds that it took."""
        tokens, seconds = self._ask(f"read {number}").split()
        return int(tokens), float(seconds)

    def lent(self):
        """Bytes that it has given to peers."""
        return int(self._ask("lent"))

    def lie(self, about=""):
        """Have it lie to its peers about that; about nothing, if it is empty."""
        assert self._ask(f"lie {about}") == "so be it"

    def kill(self):
        """As a machine goes down: no farewell."""
        self.process.kill()
        self.process.wait()

    def _ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


def say(word):
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def main():
    with build(load(None, {}, json.loads(sys.stdin.readline())), NAMESPACE) as engine:
        say(engine.admin.peers.member.address)
        liar = None
        for line in sys.stdin:
            verb, *number = line.split()
            if verb == "lie":
                liar = liar or LyingPeer(engine.admin.peers)
                liar.lie(" ".join(number))
                say("so be it")
                continue
            if verb == "lent":
                say(str(int(engine.telemetry.total(CounterName.LENT_BYTES))))
                continue
            tokens = prompt(int(number[0]))
            if verb == "store":
                engine.store(tokens, computed(tokens))
                say("stored")
            else:
                start = time.monotonic()
                target = HeapKV(LAYOUT, len(tokens))
                got = engine.retrieve(tokens, target).hit_tokens
                seconds = time.monotonic() - start
                assert target.agrees(computed(tokens), got)
                say(f"{got} {seconds}")


if __name__ == "__main__":
    main()
