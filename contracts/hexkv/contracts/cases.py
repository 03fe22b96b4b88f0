"""Many cases of one promise in one test, each of which can be told from a failure."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

Test = Callable[..., None]


@contextmanager
def case(name: object) -> Iterator[None]:
    """A block of which a failure says that it was the case *name*."""
    try:
        yield
    except Exception as error:
        error.add_note(f"case: {name}")
        raise


def each(
    names: str | Sequence[str],
    values: Iterable[object],
    ids: Iterable[object] | Callable[..., object] = repr,
) -> Callable[[Test], Test]:
    """``pytest.mark.parametrize`` in one test, which gets *values* one after the other.

    For cases that cost next to nothing beside what a test of its own costs each of them. All of
    them get the same fixtures: a test that changes a fixture does so under names of its own.

    Args:
        names: of the arguments: one, or several, also as ``"one, another"``.
        values: one per case; a sequence per case for several names.
        ids: what the cases are called, or what gives it for a value.
    """
    several = not isinstance(names, str) or "," in names
    arguments = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    cases = list(values)
    called = list(map(ids, cases)) if callable(ids) else list(ids)
    rows = [tuple(value) if several else (value,) for value in cases]  # type: ignore[arg-type]

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def together(*args: object, **fixtures: object) -> None:
            __tracebackhide__ = True
            for row, name in zip(rows, called, strict=True):
                with case(name):
                    test(*args, **fixtures, **dict(zip(arguments, row, strict=True)))

        rest = [p for name, p in signature.parameters.items() if name not in arguments]
        together.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return together

    return decorate
