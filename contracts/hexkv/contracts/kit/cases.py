"""Many cases of one promise in one test; a failure names its case."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from hexkv.contracts.kit.limits import step

Test = Callable[..., None]


@contextmanager
def case(name: object) -> Iterator[None]:
    """A block whose failures name the case *name*, and a step of its promise."""
    step()
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

    For cases that cost almost nothing compared with a test of their own. All of them share the
    fixtures: a test that changes a fixture uses names of its own for each case.

    Args:
        names: of the arguments: one, or several, also as ``"one, another"``.
        values: one per case; a sequence per case for several names.
        ids: names of the cases, or a function that returns the name for a value.
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
