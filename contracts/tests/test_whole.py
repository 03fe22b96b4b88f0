"""A contract cannot be thinned out in silence."""

import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from pathlib import Path

import pytest

import hexkv.contracts
from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import Level
from hexkv.contracts.kit.whole import Whole, dropped_tests, waive


class KettleContract(Whole):
    def test_boils(self): ...

    def test_whistles(self): ...


def test_a_contract_that_is_kept_drops_nothing():
    class Kettle(KettleContract):
        def test_shines(self): ...

    assert list(dropped_tests(Kettle)) == []
    Kettle().test_contract_is_whole()


def replaced():
    class Kettle(KettleContract):
        def test_boils(self): ...

    return Kettle


def replaced_by_a_mixin():
    class Lukewarm:
        def test_boils(self): ...

    class Kettle(Lukewarm, KettleContract): ...

    return Kettle


def replaced_two_classes_down():
    class Base(KettleContract): ...

    class Kettle(Base):
        def test_boils(self): ...

    return Kettle


def skipped():
    class Kettle(KettleContract):
        @pytest.mark.skip(reason="no time to boil")
        def test_boils(self): ...

    return Kettle


def xfailed_without_a_reason():
    class Kettle(KettleContract):
        @pytest.mark.xfail(reason="  ")
        def test_boils(self): ...

    return Kettle


def removed():
    class Kettle(KettleContract):
        test_boils = None

    return Kettle


def removed_later():
    class Kettle(KettleContract): ...

    Kettle.test_boils = None
    return Kettle


def switched_off():
    class Kettle(KettleContract):
        @pytest.mark.xfail(reason="it leaks")
        def test_boils(self): ...

        test_boils.__test__ = False

    return Kettle


@each(
    "define",
    [
        replaced,
        replaced_by_a_mixin,
        replaced_two_classes_down,
        skipped,
        xfailed_without_a_reason,
        removed,
        removed_later,
        switched_off,
    ],
)
def test_a_test_that_is_dropped_in_silence_fails_the_contract(define):
    kettle = define()
    (sentence,) = dropped_tests(kettle)
    assert sentence.startswith("Kettle ")
    assert "KettleContract.test_boils" in sentence
    with pytest.raises(AssertionError, match=r"KettleContract\.test_boils"):
        kettle().test_contract_is_whole()


def test_a_test_may_be_dropped_with_a_reason():
    class Kettle(KettleContract):
        test_boils = waive("a cold kettle")

        @pytest.mark.xfail(reason="no whistle yet")
        def test_whistles(self): ...

    Kettle().test_contract_is_whole()


def test_a_waiver_needs_a_reason():
    with pytest.raises(ValueError, match="needs a reason"):
        waive(" ")


def test_the_check_itself_cannot_be_replaced():
    with pytest.raises(TypeError, match="the check itself"):

        class Kettle(KettleContract):
            test_contract_is_whole = waive("let me pass")


def test_the_check_itself_cannot_be_replaced_by_a_mixin():
    class Lenient:
        def test_contract_is_whole(self): ...

    with pytest.raises(TypeError, match="the check itself"):

        class Kettle(Lenient, KettleContract): ...


@pytest.mark.thorough
def test_every_fixture_that_an_author_gives_and_every_level_is_on_one_page():
    page = (Path(__file__).parents[2] / "docs/writing-an-adapter.md").read_text()
    rows = page.partition("### Fixtures")[2].partition("## 5.")[0]
    shown, contract = defaultdict(set), ""
    for row in rows.splitlines():
        if row.startswith("| "):
            contract = next(iter(re.findall(r"`\S+\.(\w+Contract)`", row)), contract)
            shown[contract] |= {*re.findall(r"`(\w+)`", row)}
    asked = defaultdict(set)
    for found in pkgutil.walk_packages(hexkv.contracts.__path__, "hexkv.contracts."):
        if ".template" in found.name:
            continue
        for name, made in vars(importlib.import_module(found.name)).items():
            if inspect.isclass(made) and name.endswith("Contract"):
                for fixture in dir(made):
                    given = inspect.getattr_static(made, fixture)
                    if type(given).__name__ == "FixtureFunctionDefinition":
                        code = inspect.getsource(given._fixture_function)
                        if "NotImplementedError" in code or f'not_offered("{fixture}")' in code:
                            asked[name].add(fixture)
    assert len(asked) > 20
    lacking = {name: fixtures - shown[name] for name, fixtures in asked.items()}
    assert {name: fixtures for name, fixtures in lacking.items() if fixtures} == {}
    for level in Level:
        assert f"{level} {level.about}" in " ".join(rows.split())
    assert "waive(reason)" in rows
