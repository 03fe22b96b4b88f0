"""A fleet as it is in life: nodes and a directory as processes on machines of their own."""

import json
import random
import signal
import sys
from contextlib import ExitStack, contextmanager, suppress
from subprocess import Popen
from threading import Event, Thread
from time import monotonic

from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.fleet.api import open_fleet
from machines.net_namespaces import machines
from nodes import NodeProcess
from processes import STARTING, until

SECRET = "a secret of the fleet's tests"
HEARTBEAT = 0.5
PORT = 7171


class Started:
    """A process on a machine, which may be killed and started again."""

    process = None

    def kill(self):
        self.process.kill()
        self.process.wait(60)


class Directory(Started):
    """``hexkv directory``."""

    def __init__(self, machine, folder):
        self.machine, self.folder = machine, folder
        self.file = folder / "secret"
        self.file.write_text(SECRET)
        self.file.chmod(0o600)
        self.start()

    def start(self):
        words = ["--host", self.machine.address, "--port", str(PORT), "--json"]
        words += ["--secret-file", str(self.file), "--heartbeat", str(HEARTBEAT)]
        log = self.folder / "directory.log"
        command = [*self.machine.prefix, sys.executable, "-m", "hexkv.plugins", "directory"]
        with log.open("w") as out:
            self.process = Popen([*command, *words], stdout=out, stderr=out)
        until(lambda: '"address"' in log.read_text(), STARTING)


class FleetNode(NodeProcess):
    """``hexkv node`` on a machine of its own, whose socket everybody reaches."""

    def __init__(self, root, name, machine, directory, **options):
        self.name, self.machine = name, machine
        place = {"address": f"{directory.address}:{PORT}", "secret": SECRET}
        super().__init__(
            root / name,
            disk=False,
            directory={"adapter": "embedded", "name": name, "settings": place},
            peers={
                "channel": "tcp",
                "settings": {"listen": f"{machine.address}:0", "secret": SECRET, "patience": 2.0},
            },
            **options,
        )

    def configured(self, root, **options):
        wanted = super().configured(root, **options)
        return wanted | {"tiers": [*wanted["tiers"], {"store": "peers"}]}

    def begin(self, *options):
        command = [*self.machine.prefix, sys.executable, "-m", "hexkv.plugins", "node"]
        with (self.folder / "log").open("a") as log:
            return Popen([*command, *self.arguments(), *options], stdout=log, stderr=log)


class LiveFleet:
    """Nodes, their directory, and who acts on them from the directory's machine."""

    def __init__(self, opened, tmp_path, names, **options):
        place, *rest = opened.enter_context(machines(1 + len(names)))
        self.folder = tmp_path
        self.directory = Directory(place, tmp_path)
        opened.callback(self.directory.kill)
        self.nodes = {
            name: opened.enter_context(FleetNode(tmp_path, name, machine, place, **options))
            for name, machine in zip(names, rest, strict=True)
        }

    @property
    def addresses(self):
        return [f"{node.path}.admin" for node in self.nodes.values()]

    @contextmanager
    def hand(self, **options):
        """One hand on the fleet, by a list: the tests' own process is on no machine of it."""
        with open_fleet({}, nodes=self.addresses, **options) as fleet:
            yield fleet

    def command(self, *words, log):
        """``hexkv fleet`` as an operator has it, on the directory's machine."""
        config = self.folder / "fleet.json"
        place = {"address": f"{self.directory.machine.address}:{PORT}", "secret": SECRET}
        config.write_text(json.dumps({"directory": {"adapter": "embedded", "settings": place}}))
        command = [*self.directory.machine.prefix, sys.executable, "-m", "hexkv.plugins", "fleet"]
        with log.open("w") as out:
            return Popen([*command, "--config", config, *words, "--json"], stdout=out)

    def healthy(self):
        """Every node answers, and is known to the directory."""
        with self.hand() as fleet:
            return not any(state.problem for state in fleet.nodes())


def tokens_of(number, chunks=4):
    return random.Random(number).choices(range(50_000), k=chunks * TOKENS)


class Client:
    """An engine over a node that stores and retrieves prompts, and checks each byte."""

    def __init__(self, node, deadline):
        deadlines = {"lookup": deadline, "retrieve": deadline, "store": deadline, "close": 60.0}
        self.engine = node.engine(deadlines=deadlines)
        self.node, self.deadline = node, deadline
        self.calls = self.hits = 0
        self.late = 0.0
        """Seconds by which a call went on after its deadline, at most."""
        self.wrong = None
        self._over = Event()
        self._thread = None

    def store(self, number):
        tokens = tokens_of(number)
        self._timed(lambda: self.engine.store(tokens, self._kv(tokens)))

    def hit(self, number):
        """Tokens that come, each of them right."""
        tokens = tokens_of(number)
        target = HeapKV(LAYOUT, len(tokens))
        got = self._timed(lambda: self.engine.retrieve(tokens, target))
        assert target.agrees(self._kv(tokens), got.hit_tokens), "wrong bytes"
        self.hits += got.hit_tokens
        return got.hit_tokens

    def work(self, numbers, seed=0):
        """Store and retrieve such prompts until :meth:`rest`."""

        def run():
            rng = random.Random(f"{self.node.name} {seed}")
            try:
                while not self._over.is_set():
                    number = rng.choice(numbers)
                    if rng.random() < 0.3:
                        self.store(number)
                    else:
                        self.hit(number)
            except BaseException as error:
                self.wrong = error
                raise

        self._over.clear()
        self._thread = Thread(target=run, daemon=True)
        self._thread.start()

    def rest(self):
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.wrong is not None:
            raise self.wrong

    def _timed(self, call):
        start = monotonic()
        got = call()
        self.late = max(self.late, monotonic() - start - self.deadline)
        self.calls += 1
        return got

    @staticmethod
    def _kv(tokens):
        return HeapKV(LAYOUT, len(tokens)).compute(tokens)


@contextmanager
def live_fleet(tmp_path, *names, deadline=2.0, **options):
    """A fleet and a client at each node."""
    with ExitStack() as opened:
        fleet = LiveFleet(opened, tmp_path, names, **options)
        clients = {}
        for name, node in fleet.nodes.items():
            clients[name] = Client(node, deadline)
            opened.callback(clients[name].engine.close)
        yield fleet, clients


def thaw(node):
    with suppress(ProcessLookupError):
        node.process.send_signal(signal.SIGCONT)
