"""Every promise of the kit, without checking any."""

from __future__ import annotations

from collections.abc import Iterator

from hexkv.contracts.check import suite
from hexkv.contracts.promise import Level, Promise
from hexkv.contracts.whole import Whole


def promises() -> dict[str, Promise]:
    """All of them by number, level by level."""
    found = {promise.number: promise for promise in every_promise()}
    return {promise.number: promise for promise in sorted(found.values(), key=_order)}


def _order(promise: Promise) -> tuple[Level, list[tuple[str, int]]]:
    return promise.order


def every_promise() -> Iterator[Promise]:
    """The promise of each test, in no order."""
    for contract in vars(suite).values():
        if isinstance(contract, type) and issubclass(contract, Whole):
            for name in dir(contract):
                if name.startswith("test_"):
                    marks = getattr(getattr(contract, name), "pytestmark", [])
                    if promise := Promise.of(marks):
                        yield promise
