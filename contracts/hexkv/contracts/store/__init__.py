"""The contract of chunk stores.

=====  ==========================================================================
L0     it can be opened, and closed without a call
L1     a frame written under a key is read under that key
L2     a frame that the medium damages is returned as it is, or not at all
L3     all of this holds with many threads at once, and after opening it again
L4     a service that dies, hangs, lies or fills up costs a deadline, never a wrong byte
L5     namespaces, stores and foreign entries on one service do not interfere
L6     its speed comes near to that of its medium
=====  ==========================================================================

and ``scan``, ``quarantine``, ``clear``, ``sharing``, ``range`` and ``limit`` for the optional
abilities, which are checked where a store offers them.
"""

from __future__ import annotations

from hexkv.contracts.store._abilities import Quarantine, RangeRead
from hexkv.contracts.store._answers import Answers
from hexkv.contracts.store._base import (
    Aside,
    Foreign,
    Huge,
    Limit,
    RawAccess,
    Reopen,
    StoreCase,
    Unreadable,
)
from hexkv.contracts.store._batches import Batches
from hexkv.contracts.store._clearing import Clearing
from hexkv.contracts.store._data import Data
from hexkv.contracts.store._filling import Filling
from hexkv.contracts.store._huge import Lengths
from hexkv.contracts.store._lifecycle import Lifecycle
from hexkv.contracts.store._limit import OwnLimit
from hexkv.contracts.store._listing import Listing
from hexkv.contracts.store._service import Ability, BehindProxy, Service
from hexkv.contracts.store._speed import Speed
from hexkv.contracts.store.faulty._damage import Damage
from hexkv.contracts.store.faulty._faults import Faults
from hexkv.contracts.store.faulty._isolation import Isolation
from hexkv.contracts.store.faulty._lasting import Leaks, Reopening
from hexkv.contracts.store.faulty._late import Late, LateWrites
from hexkv.contracts.store.parallel._ordered import Ordered
from hexkv.contracts.store.parallel._sharing import Sharing
from hexkv.contracts.store.parallel._threads import Threads

__all__ = [
    "Ability",
    "Aside",
    "BehindProxy",
    "Foreign",
    "Huge",
    "Limit",
    "RawAccess",
    "Reopen",
    "Service",
    "StoreContract",
    "Unreadable",
]


class StoreContract(
    Lifecycle,
    Data,
    Batches,
    Late,
    Lengths,
    Filling,
    Answers,
    Listing,
    Quarantine,
    RangeRead,
    OwnLimit,
    Clearing,
    Sharing,
    Damage,
    Threads,
    Reopening,
    Leaks,
    Ordered,
    Faults,
    LateWrites,
    Isolation,
    Speed,
    StoreCase,
):
    """Subclass this, give it a ``store`` and a ``raw`` fixture, and run pytest.

    A persistent store also gives ``reopen``, one on a service ``service``, and any store to which
    they apply ``sibling``, ``foreign``, ``limit``, ``huge`` and ``aside``. Missing fixtures are
    reported as not offered. See :class:`RawAccess`, :data:`Reopen`, :class:`Service`,
    :data:`Foreign`, :class:`Limit`, :data:`Huge` and :data:`Aside`.
    """
