"""Stores that misbehave on purpose, around any store, for tests of what uses them.

:class:`FaultyStore` fails by a plan or at a test's command, :class:`SlowStore` delays its calls,
:class:`RecordingStore` records its calls, and :class:`Wrapped` is the base for wrappers of your
own. Each has the optional abilities of the store inside, so the core treats both alike. All
waiting goes through two functions that a test may replace, to run in virtual time.

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
