"""Every promise of the kit and of installed black boxes, without checking any."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from hexkv import contracts
from hexkv.contracts.kit.promise import Level, Promise
from hexkv.contracts.kit.whole import Whole
from hexkv.plugins.cli.output import installed


def promises() -> dict[str, Promise]:
    """All promises by number, sorted by level."""
    found = {promise.number: promise for promise in every_promise()}
    return {promise.number: promise for promise in sorted(found.values(), key=_order)}


def _order(promise: Promise) -> tuple[Level, list[tuple[str, int]]]:
    return promise.order


def every_promise() -> Iterator[Promise]:
    """The promise of each test, in no order."""
    boxes = {spec.black_box for spec in installed().adapters.values()} - {""}
    kit = [found.name for found in pkgutil.walk_packages(contracts.__path__, "hexkv.contracts.")]
    modules = map(importlib.import_module, [*kit, *sorted(boxes)])
    for contract in (found for module in modules for found in vars(module).values()):
        if isinstance(contract, type) and issubclass(contract, Whole):
            for name in dir(contract):
                if name.startswith("test_"):
                    marks = getattr(getattr(contract, name), "pytestmark", [])
                    if promise := Promise.of(marks):
                        yield promise
