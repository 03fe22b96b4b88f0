"""Tables of mutants: each row is the promise that catches it, its name, and a small override."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any


class Wrong:
    """What is wrong with a mutant, in a sentence, and the attributes that make it so.

    An override is a method. One whose second parameter is ``real`` gets the method that it
    replaces there, bound.
    """

    def __init__(self, sentence: str, /, **overrides: Any) -> None:
        self.sentence, self.overrides = sentence, overrides


def broken(
    module: str, contract: type, adapter: type | None, rows: Mapping[str, Wrong]
) -> dict[str, type]:
    """Test classes by name, one for each row, which is called ``<promise> <name>``.

    Each is a *contract* whose ``Make`` is *adapter* with the row's overrides. Without an
    *adapter* the overrides are the contract's own.
    """
    made = {}
    for title, wrong in rows.items():
        number, _, words = title.partition(" ")
        name = "Test" + "".join(word[:1].upper() + word[1:] for word in words.split())
        found = {"__doc__": wrong.sentence, "__module__": module, "breaks": number}
        changed = {at: _method(adapter or contract, at, to) for at, to in wrong.overrides.items()}
        found |= {"Make": type("Make", (adapter,), changed)} if adapter else changed
        made[name] = type(name, (contract,), found)
    return made


def _method(base: type, at: str, to: Any) -> Any:
    if not callable(to) or isinstance(to, type) or [*signature(to).parameters][1:2] != ["real"]:
        return to
    real: Callable[..., Any] = getattr(base, at)
    return lambda self, *args, **options: to(self, partial(real, self), *args, **options)
