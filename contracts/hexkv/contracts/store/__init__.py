"""What every chunk store promises.

=====  ==========================================================================
L0     it can be opened, asked nothing, and closed
L1     what is written under a key is what is read under that key
L2     what the medium damages is given back as it is, or not at all
L3     all of this holds with many threads at once, and after opening it again
=====  ==========================================================================

and ``scan``, ``quarantine``, ``sharing`` and ``range`` for the optional abilities, which are
checked where a store offers them.
"""

from __future__ import annotations

from hexkv.contracts.store._abilities import Listing, Quarantine, RangeRead
from hexkv.contracts.store._base import RawAccess, Reopen, StoreCase
from hexkv.contracts.store._batches import Batches
from hexkv.contracts.store._damage import Damage
from hexkv.contracts.store._data import Data
from hexkv.contracts.store._lifecycle import Lifecycle
from hexkv.contracts.store._sharing import Sharing
from hexkv.contracts.store._threads import Reopening, Threads

__all__ = ["RawAccess", "Reopen", "StoreContract"]


class StoreContract(
    Lifecycle,
    Data,
    Batches,
    Listing,
    Quarantine,
    RangeRead,
    Sharing,
    Damage,
    Threads,
    Reopening,
    StoreCase,
):
    """Subclass this, give it a ``store`` and a ``raw`` fixture, and run pytest.

    A persistent store also gives ``reopen``. See :class:`RawAccess` and :data:`Reopen`.
    """
