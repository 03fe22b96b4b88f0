"""Fleets for tests: engines or nodes that serve each other, a directory, and one hand on them."""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from configured import FRAME, prompt
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.fleet.api import open_fleet
from hexkv.plugins.clock import SystemClock
from operating.administration import short_folder
from peers.peering import eventually, serving
from servers.directory_servers import SECRET, Served

RED = "of the red tenant"


@dataclass
class Members:
    """A fleet in this process."""

    folder: object
    directory: dict
    engines: dict = field(default_factory=dict)

    @property
    def config(self):
        return {"directory": self.directory}

    def serve(self, name, **sections):
        """Begin a node: an engine that reports, serves its chunks, and may be administered."""
        wanted = {
            "directory": self.directory | {"name": name},
            "admin": {"address": str(self.folder / f"{name}.sock")},
        }
        self.engines[name] = serving(**(wanted | sections))
        return self.engines[name]

    def store(self, name, seed=1):
        """Store a prompt at a node; its tokens and keys."""
        engine, tokens = self.engines[name], prompt(seed)
        kv = HeapKV(engine.namespace.layout, len(tokens)).compute(tokens)
        engine.store(tokens, kv)
        return tokens, list(engine.chunk_keys(tokens))

    def known(self, *names):
        """Wait until the directory knows these nodes and no others."""

        def there():
            with open_fleet(self.config, partial=True) as fleet:
                return {node.name for node in fleet.nodes()} == set(names)

        eventually(there)

    def at_rest(self):
        """Nobody leases or pins anything for a move any more."""
        for engine in self.engines.values():
            health = engine.health()
            assert not [owner for owner in health.pins if owner.startswith("move ")]
            eventually(
                lambda engine=engine: all(
                    owner.endswith(" store") for owner in engine.health().leases
                )
            )


@contextmanager
def fleet_of(*names, **sections):
    """Engines of these names, known to a directory."""
    with ExitStack() as opened:
        folder = opened.enter_context(short_folder())
        served = opened.enter_context(Served(SystemClock()))
        settings = {"address": str(served.address), "secret": SECRET.decode()}
        members = Members(folder, {"adapter": "embedded", "settings": settings})
        for name in names:
            opened.enter_context(members.serve(name, **sections))
        members.known(*names)
        yield members
        members.at_rest()


def room(chunks):
    """A memory tier for so many chunks."""
    return {"tiers": [{"store": "memory", "budget": chunks * FRAME}]}
