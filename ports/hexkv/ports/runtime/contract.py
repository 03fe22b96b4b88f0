"""The version of the contracts between hexkv and its adapters, and how a version is retired.

An addition that no adapter can break needs no new number: a protocol for an ability that a stack
checks for, an argument with a default, a reason, an error. A change that an adapter which kept
every promise may break raises :data:`CONTRACT` by one. From then on adapters of the number before
are built as before, with a ``DeprecationWarning`` that names the changes and the release that ends
support. Names follow the same rule: for one minor release the old one works beside the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CONTRACT = 2
"""The version of the contracts that this hexkv and its adapters keep."""

OLDEST = 1
"""The oldest version that it still keeps: the one before :data:`CONTRACT`, for a while."""

ENDS = "0.3"
"""The release of hexkv that keeps only :data:`CONTRACT`."""

CHANGES: Mapping[int, str] = MappingProxyType(
    {
        2: "a store that keeps leases has put_lease and get_lease, for many chunks at once;"
        " a memory provider keeps the pages that were used, and may back them ahead",
    }
)
"""The changes of each number after the first, for authors of older adapters."""


def unkept(contract: int) -> str:
    """Return why an adapter of *contract* is not built, in a few words; empty if it is."""
    if OLDEST <= contract <= CONTRACT:
        return ""
    kept = f"{OLDEST} to {CONTRACT}" if OLDEST < CONTRACT else f"{CONTRACT}"
    why = f"is written for contract {contract}, and this hexkv keeps {kept}"
    return f"{why}: a newer hexkv may know it" if contract > CONTRACT else why


def ending(contract: int) -> str:
    """Return a notice for authors of adapters of *contract*; empty unless it is an older one."""
    if contract >= CONTRACT:
        return ""
    changed = "; ".join(f"{n}: {CHANGES[n]}" for n in range(contract + 1, CONTRACT + 1))
    return (
        f"is written for contract {contract}, which hexkv {ENDS} keeps no more."
        f" What changed with {changed}"
    )
