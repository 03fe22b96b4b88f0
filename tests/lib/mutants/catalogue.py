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
            "store_data",
            "store_answers",
            "store_edges",
            "store_rest",
            "store_abilities",
            "store_clearing",
            "store_crossed",
            "store_reopened",
            "store_amid",
            "store_late",
            "store_listing",
            "store_sizes",
            "store_faults",
            "store_filling",
            "store_vast",
        ),
    ),
    Port("serde", SerdeContract, ("serde_round_trips", "serde_hostile")),
    Port("device", DeviceContract, ("devices", "devices_late")),
    Port("memory", MemoryContract, ("memories",)),
    Port("policy", PolicyContract, ("policies",)),
    Port("chunker", ChunkerContract, ("chunkers",)),
    Port("checksum", ChecksumContract, ("checksums",)),
    Port("plugin", PluginContract, ("plugins",)),
    Port("chunk cache", ChunkCacheContract, ("chunk_caches", "chunk_nodes")),
    Port("chunk service", ChunkServiceContract, ("chunk_services",)),
    Port("directory", DirectoryContract, ("directories",)),
    Port("channel", ChannelContract, ("channels", "channels_direct", "channels_suspended")),
    Port("announcing", AnnouncingContract, ("announcings",)),
    Port("collective", CollectiveContract, ("collectives",)),
    Port("encoded", EncodedContract, ("encodings",)),
    Port("hand over", HandOverContract, ("hand_overs",)),
    Port("observer", ObserverContract, ("observers",)),
    Port("prefix cache", PrefixCacheContract, ("prefix_caches",)),
    Port("telemetry", TelemetryContract, ("telemetries",)),
    Port("events", EventSinkContract, ("event_sinks",)),
    Port("segment finder", SegmentFinderContract, ("segment_finders",)),
    Port("segments", SegmentCacheContract, ("segment_caches",)),
    Port("node socket", NodeSocketContract, ("node_sockets",)),
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
