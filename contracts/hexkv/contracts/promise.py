"""A promise: what one test of a contract holds an adapter to, by a name that stays."""

from __future__ import annotations

from typing import NoReturn

import pytest


def promise(number: str, text: str, *, hint: str = "") -> pytest.MarkDecorator:
    """Mark a test with the promise it checks. A failure then names the promise.

    Args:
        number: never given to another promise, even when this one is withdrawn.
        text: what the adapter does, as the rest of a sentence that starts with its name.
        hint: where an author should look first.
    """
    return pytest.mark.promise(number, text, hint=hint)


def not_offered(ability: str) -> NoReturn:
    """Skip the test: the adapter does not have this optional *ability*.

    The pytest plugin lists such abilities at the end of the run.
    """
    pytest.skip(f"not offered: {ability}")
