"""Stores that misbehave on purpose, around any store, for tests of what uses them.

:class:`FaultyStore` fails as a plan says or as a test commands, :class:`SlowStore` takes
its time, :class:`RecordingStore` tells what it was asked, and :class:`Wrapped` is for further
ones of your own. Each has the optional abilities of the store inside, so the core treats it
alike. Nothing here sleeps by itself: time passes through two functions that a test may
replace, and so runs in virtual time, too.

For a store that talks to a server there is :mod:`hexkv.contracts.faults.proxy`, which stands
between the two.
"""

from __future__ import annotations

from hexkv.contracts.faults._faulty import FaultyStore, SlowStore, pause, stand_still
from hexkv.contracts.faults._plans import Fault, Plan, Scripted, Seeded, Trouble
from hexkv.contracts.faults._wrapping import Call, RecordingStore, Wrapped

__all__ = [
    "Call",
    "Fault",
    "FaultyStore",
    "Plan",
    "RecordingStore",
    "Scripted",
    "Seeded",
    "SlowStore",
    "Trouble",
    "Wrapped",
    "pause",
    "stand_still",
]
