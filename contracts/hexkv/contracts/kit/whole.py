"""A check that no test of a contract is dropped without a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

import pytest


def waive(reason: str) -> Callable[[object], None]:
    """A replacement for a test that the adapter cannot pass: reported as xfailed, with *reason*.

    Use it for a promise whose test must not even run::

        class TestTapeStore(StoreContract):
            test_an_expired_deadline_is_answered_at_once = waive("a tape rewinds first")

    If the test may run, override it, call ``super()`` and mark it
    ``pytest.mark.xfail(reason=...)``: then the report also shows when the promise is kept.

    Raises:
        ValueError: *reason* is blank.
    """
    if not reason.strip():
        raise ValueError("a waived promise needs a reason")

    @pytest.mark.xfail(reason=reason, run=False)
    def waived(self: object) -> None:
        del self

    return waived


class Whole:
    """Base of the contracts: checks that a subclass keeps every test it inherits.

    A test may be replaced only by one with a reason, through :func:`waive` or
    ``pytest.mark.xfail(reason=...)``, so that the reason shows in every report.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.test_contract_is_whole is not Whole.test_contract_is_whole:
            raise TypeError(f"{cls.__name__} replaces test_contract_is_whole, the check itself")

    @final
    def test_contract_is_whole(self) -> None:
        """No inherited test is replaced, removed or switched off without a reason."""
        dropped = list(dropped_tests(type(self)))
        assert not dropped, "; ".join(dropped)


def dropped_tests(cls: type) -> Iterator[str]:
    """One sentence for each inherited test that *cls* drops without a reason."""
    promised: dict[str, type] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, Whole):
            for name in vars(base):
                if name.startswith("test_"):
                    promised.setdefault(name, base)
    for name, owner in promised.items():
        found = getattr(cls, name, None)
        if found is None:
            yield f"{cls.__name__} removes {owner.__name__}.{name}"
        elif not getattr(found, "__test__", True):
            yield f"{cls.__name__} switches {owner.__name__}.{name} off"
        elif found is not vars(owner)[name] and not _excused(found):
            yield (
                f"{cls.__name__} replaces {owner.__name__}.{name} without waive(reason) "
                "or xfail(reason=...)"
            )


def _excused(test: object) -> bool:
    """True if *test* has an ``xfail`` mark with a reason that is not blank."""
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    return any(
        mark.name == "xfail" and str(mark.kwargs.get("reason") or "").strip() for mark in marks
    )
