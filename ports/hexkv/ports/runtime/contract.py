"""The version of the contracts between hexkv and its adapters.

An addition that no adapter can break needs no new number: a protocol for an ability that a stack
checks for, an argument with a default, a reason, an error. A change that an adapter which kept
every promise may break raises :data:`CONTRACT` by one.
"""

from __future__ import annotations

CONTRACT = 2
"""The version of the contracts that this hexkv and its adapters keep."""


def unkept(contract: int) -> str:
    """Return why an adapter of *contract* is not built, in a few words; empty if it is."""
    if contract == CONTRACT:
        return ""
    if not contract:
        return f"does not name the contract that it is written for; this hexkv keeps {CONTRACT}"
    why = f"is written for contract {contract}, and this hexkv keeps {CONTRACT}"
    return f"{why}: a newer hexkv may know it" if contract > CONTRACT else why
