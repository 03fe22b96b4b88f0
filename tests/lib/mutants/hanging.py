"""Adapters that block for ever, one for each method of each port. The kit names a promise.

They are no mutants of one promise each: which one meets the method first is of no importance.
"""

from __future__ import annotations

from threading import Event

from devices.slot_kv import SlotContract, SlotKV
from dict_store import CapableStore, WholeContract
from media.plain_serde import PlainContract
from mutants.bytes.checksums import CRCContract
from mutants.bytes.memories import PlainMemory, PlainMemoryContract, PlainRegion
from mutants.caches.chunk_caches import HeapCacheContract
from mutants.caches.chunkers import PlainChunkerContract
from mutants.caches.prefix_caches import EngineContract
from mutants.fleet.channels import LocalContract
from mutants.plugins import GramophoneContract
from mutants.policies import ListContract

METHODS = {
    WholeContract: (
        *("contains", "read", "write", "delete", "close", "scan", "quarantine", "read_range"),
        *("clear_prefix", "put_lease", "get_lease"),
    ),
    PlainContract: ("bound", "encode", "decode", "index_bytes", "layer_parts", "decode_layer"),
    SlotContract: ("gather", "scatter"),
    PlainMemoryContract: ("allocate",),
    ListContract: ("admit", "touch", "drop", "victims"),
    PlainChunkerContract: ("cut",),
    HeapCacheContract: (
        *("match", "hold", "allocate", "publish", "load", "save", "forget", "pin", "unpin"),
        "close",
    ),
    LocalContract: ("serve", "read", "offer", "ask", "close"),
    EngineContract: (
        *("lookup", "retrieve", "store", "retrieve_layers", "store_layers", "prefetch", "cancel"),
        *("pin", "unpin", "clear", "flush", "close"),
    ),
}
"""What of each port is called from outside."""


def block(*arguments, **options):
    Event().wait()


def _hanging(contract, method, base):
    make = type(base.__name__, (base,), {method: block})
    return type(f"Test{base.__name__}HangsIn{method.title()}", (contract,), {"Make": make})


for _contract, _methods in METHODS.items():
    _base = CapableStore if _contract is WholeContract else _contract.Make
    for _case in [_hanging(_contract, _method, _base) for _method in _methods]:
        _case.__module__ = __name__
        globals()[_case.__name__] = _case


class TestTransferHangs(SlotContract):
    class Make(SlotKV):
        def transfer(self):
            return type("Stuck", (), {"wait": block})()


class TestRegionHangs(PlainMemoryContract):
    class Make(PlainMemory):
        class Region(PlainRegion):
            close = block


class TestChecksumHangs(CRCContract):
    digest = staticmethod(block)


class TestPluginHangsWhenImported(GramophoneContract):
    change = ("from pathlib import Path", "import threading; threading.Event().wait()")


class TestPluginHangsWhenAsked(GramophoneContract):
    change = ("return [CommandSpec", "import threading; threading.Event().wait(); [CommandSpec")


del globals()["_case"]
