"""Promises about several clients at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event

from hexkv.adapters.lmcache.blackbox._data import content, same
from hexkv.adapters.lmcache.blackbox._wire import PATIENCE, Address, Keys, Wire, WireCase
from hexkv.contracts.kit.promise import Level, promise

_CLIENTS = 48
_TURNS = 60


class Neighbours(WireCase):
    """Clients that follow the protocol."""

    @promise(
        "wire.20",
        "serves many connections at a time, each with its own",
        level=Level.L3,
        clause="connections",
        why="every engine of a fleet keeps a connection open",
    )
    def test_many_clients_are_served(self, server: Address, key: Keys) -> None:
        names = [key() for _ in range(_CLIENTS)]
        with ExitStack() as opened:
            wires = [opened.enter_context(Wire(server)) for _ in names]

            def work(index: int) -> None:
                for turn in range(3):
                    value = content(20_000 + index, seed=index + turn)
                    wires[index].put(names[index], value)
                    same(wires[index].get(names[index]), value)

            with ThreadPoolExecutor(_CLIENTS) as pool:
                list(pool.map(work, range(_CLIENTS)))

    @promise(
        "wire.21",
        "gives a value whole while it is being replaced: the old one or the new one",
        level=Level.L3,
        clause="PUT",
        why="the beginning of one value with the end of another is wrong KV",
        hint="publish a value when all of it is there",
    )
    def test_a_reader_sees_one_value_or_the_other(self, server: Address, key: Keys) -> None:
        name, values = key(), [content(300_000, seed) for seed in (1, 2)]
        over = Event()

        def write() -> None:
            with Wire(server) as wire:
                turn = 0
                while not over.is_set():
                    wire.put(name, values[turn % 2])
                    turn += 1
                    assert wire.exists(name)

        with Wire(server) as wire:
            wire.put(name, values[0])
            assert wire.exists(name)
            with ThreadPoolExecutor(1) as pool:
                writer = pool.submit(write)
                try:
                    for _ in range(_TURNS):
                        got = wire.get(name)
                        assert got in values, "neither the old value nor the new one"
                finally:
                    over.set()
                writer.result(PATIENCE)

    @promise(
        "wire.22",
        "keeps what one client puts as it is, whatever another puts, gets or asks",
        level=Level.L5,
        clause="key",
        why="fleets share servers",
    )
    def test_foreign_keys_are_left_alone(self, server: Address, wire: Wire, key: Keys) -> None:
        foreign = {key(): content(5000, seed) for seed in range(5)}
        with Wire(server) as other:
            for name, value in foreign.items():
                other.put(name, value)
            assert other.exists(next(iter(foreign)))
        mine = {name.replace(b"@uint8", b"9@uint8"): content(300, 9) for name in foreign}
        key.given += mine
        for name, value in mine.items():
            wire.put(name, value)
        wire.put(next(iter(mine)), b"")
        for name, value in foreign.items():
            same(wire.get(name), value)
