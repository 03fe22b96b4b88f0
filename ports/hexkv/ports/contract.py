"""The version of the contracts between hexkv and its adapters, and how one comes to an end.

What nobody's adapter can break is added without a new number: a protocol for an ability that a
stack asks for, an argument with a default, a reason, an error. Whatever an adapter that kept every
promise may break raises :data:`CONTRACT` by one. From then on adapters of the number before are
built as before, with a ``DeprecationWarning`` that names what changed and the release that ends
it. Names follow the same rule: for one minor release the old one is there beside the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CONTRACT = 2
"""The contracts that this hexkv keeps with its adapters, and that they promise."""

OLDEST = 1
"""The oldest ones that it still keeps: those before :data:`CONTRACT`, for a while."""

ENDS = "0.3"
"""The release of hexkv that keeps :data:`CONTRACT` alone."""

CHANGES: Mapping[int, str] = MappingProxyType(
    {
        2: "a store that keeps leases has put_lease and get_lease, for many chunks at once;"
        " a memory provider keeps the pages that were used, and may back them ahead",
    }
)
"""What each number after the first changed, for who wrote an adapter before."""


def unkept(contract: int) -> str:
    """Why an adapter of *contract* is not built, in a few words; empty if it is."""
    if OLDEST <= contract <= CONTRACT:
        return ""
    kept = f"{OLDEST} to {CONTRACT}" if OLDEST < CONTRACT else f"{CONTRACT}"
    why = f"is written for contract {contract}, and this hexkv keeps {kept}"
    return f"{why}: a newer hexkv may know it" if contract > CONTRACT else why


def ending(contract: int) -> str:
    """What the author of an adapter of *contract* should know; empty if it is no older one."""
    if contract >= CONTRACT:
        return ""
    changed = "; ".join(f"{n}: {CHANGES[n]}" for n in range(contract + 1, CONTRACT + 1))
    return (
        f"is written for contract {contract}, which hexkv {ENDS} keeps no more."
        f" What changed with {changed}"
    )
