import pytest

TAPE = "TestTapeStore"
"""It has no mark ``thorough``, since the tutorial quotes it. ``make test`` has it checked
by ``hexkv check`` for its badge, in ``contracts/tests/test_check.py``."""


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        cls = getattr(item, "cls", None)
        if cls is not None and cls.__name__ == TAPE:
            item.add_marker(pytest.mark.thorough)
