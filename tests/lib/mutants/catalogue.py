"""Every mutant there is, and the promise that it breaks."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from hexkv.adapters.node.blackbox import NodeSocketContract
from hexkv.contracts.announcing import AnnouncingContract
from hexkv.contracts.channel import ChannelContract
from hexkv.contracts.checksum import ChecksumContract
from hexkv.contracts.chunk_cache import ChunkCacheContract
from hexkv.contracts.chunk_cache.service import ChunkServiceContract
from hexkv.contracts.chunker import ChunkerContract
from hexkv.contracts.collective import CollectiveContract
from hexkv.contracts.device import DeviceContract
from hexkv.contracts.directory import DirectoryContract
from hexkv.contracts.encoded import EncodedContract
from hexkv.contracts.hand_over import HandOverContract
from hexkv.contracts.kit.promise import Promise
from hexkv.contracts.kit.whole import Whole
from hexkv.contracts.memory import MemoryContract
from hexkv.contracts.observer import ObserverContract
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.policy import PolicyContract
from hexkv.contracts.prefix_cache import PrefixCacheContract
from hexkv.contracts.segment_finder import SegmentFinderContract
from hexkv.contracts.segments import SegmentCacheContract
from hexkv.contracts.serde import SerdeContract
from hexkv.contracts.store import StoreContract
from hexkv.contracts.telemetry import EventSinkContract, TelemetryContract

HERE = Path(__file__).parent
WITNESSES = HERE / "witnesses.py"
HANGING = HERE / "hanging.py"


@dataclass(frozen=True)
class Port:
    """A port, the contract of its adapters, and where those that break it are."""

    name: str
    contract: type[Whole]
    modules: tuple[str, ...]

    def promises(self) -> dict[str, Promise]:
        """Every promise of the contract by its number."""
        return {promise.number: promise for promise in self.tests().values()}

    def tests(self) -> dict[str, Promise]:
        """The promise that each test of the contract checks."""
        marked = {
            name: Promise.of(getattr(getattr(self.contract, name), "pytestmark", []))
            for name in dir(self.contract)
            if name.startswith("test_")
        }
        return {name: promise for name, promise in marked.items() if promise is not None}


PORTS = (
    Port(
        "store",
        StoreContract,
        (
            "stores.store_data",
            "stores.store_answers",
            "stores.store_edges",
            "stores.store_rest",
            "stores.store_abilities",
            "stores.store_clearing",
            "stores.store_crossed",
            "stores.store_reopened",
            "served.store_amid",
            "served.store_late",
            "stores.store_listing",
            "served.store_sizes",
            "served.store_faults",
            "stores.store_filling",
            "stores.store_vast",
        ),
    ),
    Port("serde", SerdeContract, ("bytes.serde_round_trips", "bytes.serde_hostile")),
    Port("device", DeviceContract, ("bytes.devices", "bytes.devices_late")),
    Port("memory", MemoryContract, ("bytes.memories",)),
    Port("policy", PolicyContract, ("policies",)),
    Port("chunker", ChunkerContract, ("caches.chunkers",)),
    Port("checksum", ChecksumContract, ("bytes.checksums",)),
    Port("plugin", PluginContract, ("plugins",)),
    Port("chunk cache", ChunkCacheContract, ("caches.chunk_caches", "caches.chunk_nodes")),
    Port("chunk service", ChunkServiceContract, ("caches.chunk_services",)),
    Port("directory", DirectoryContract, ("fleet.directories",)),
    Port(
        "channel",
        ChannelContract,
        ("fleet.channels", "fleet.channels_direct", "fleet.channels_suspended"),
    ),
    Port("announcing", AnnouncingContract, ("fleet.announcings",)),
    Port("collective", CollectiveContract, ("fleet.collectives",)),
    Port("encoded", EncodedContract, ("caches.encodings",)),
    Port("hand over", HandOverContract, ("fleet.hand_overs",)),
    Port("observer", ObserverContract, ("observing.observers",)),
    Port("prefix cache", PrefixCacheContract, ("caches.prefix_caches",)),
    Port("telemetry", TelemetryContract, ("observing.telemetries",)),
    Port("events", EventSinkContract, ("observing.event_sinks",)),
    Port("segment finder", SegmentFinderContract, ("caches.segment_finders",)),
    Port("segments", SegmentCacheContract, ("caches.segment_caches",)),
    Port("node socket", NodeSocketContract, ("fleet.node_sockets",)),
)


@dataclass(frozen=True)
class Mutant:
    """A broken adapter."""

    port: str
    name: str
    file: Path
    wrong: str
    """What is wrong with it, in a sentence."""

    promise: Promise
    """The one that it breaks."""

    tests: tuple[str, ...]
    """The tests that check this promise."""

    @property
    def case(self) -> str:
        """Module and class, as a :class:`~mutants.trial.Trial` names them."""
        return f"{self.file.stem}.{self.name}"

    @property
    def nodes(self) -> list[str]:
        """What pytest is to run."""
        return [f"{self.file}::{self.name}::{test}" for test in self.tests]


def mutants() -> list[Mutant]:
    """All of them, in the order of the ports and of their modules."""
    return [
        _mutant(port, module, case)
        for port in PORTS
        for module in map(_module, port.modules)
        for case in vars(module).values()
        if isinstance(case, type) and case.__module__ == module.__name__ and "breaks" in vars(case)
    ]


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"mutants.{name}")


def _mutant(port: Port, module: ModuleType, case: type) -> Mutant:
    number = vars(case)["breaks"]
    tests = tuple(name for name, promise in port.tests().items() if promise.number == number)
    wrong = " ".join((case.__doc__ or "").split())
    file = Path(str(module.__file__))
    return Mutant(port.name, case.__name__, file, wrong, port.promises()[number], tests)
