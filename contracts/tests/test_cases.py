"""Cases of one promise in one test."""

import inspect

import pytest

from hexkv.contracts.kit.cases import case, each


def seen_by(decorate, *fixtures):
    seen = []

    @decorate
    def test(store, number, word="none"):
        seen.append((store, number, word))

    test(*fixtures)
    return seen, list(inspect.signature(test).parameters)


def test_a_test_gets_one_case_after_the_other_and_its_fixtures_each_time():
    seen, fixtures = seen_by(each("number", iter([1, 2])), "store")
    assert seen == [("store", 1, "none"), ("store", 2, "none")]
    assert fixtures == ["store", "word"], "pytest gives what no case gives"


@pytest.mark.parametrize("names", [("number", "word"), "number, word"])
def test_a_case_may_be_of_several_values(names):
    seen, fixtures = seen_by(each(names, [(1, "a"), [2, "b"]]), "store")
    assert seen == [("store", 1, "a"), ("store", 2, "b")]
    assert fixtures == ["store"]


def test_grids_are_of_several_such_lines():
    seen, _ = seen_by(lambda test: each("number", [1, 2])(each("word", "ab")(test)), "store")
    assert seen == [("store", n, word) for n in (1, 2) for word in "ab"]


@each(("ids", "told"), [(["one", "two", "three"], "two"), (hex, "0x2"), (repr, "2")])
def test_a_failure_says_which_case_it_was(ids, told):
    @each("number", [1, 2, 3], ids=ids)
    def test(number):
        assert number != 2, "no two"

    with pytest.raises(AssertionError, match="no two") as failed:
        test()
    assert failed.value.__notes__ == [f"case: {told}"]


def test_a_case_with_a_value_too_few_is_none():
    with pytest.raises(ValueError, match="zip"):
        seen_by(each("number, word", [(1,)]), "store")


def test_a_name_for_each_case_or_none_at_all():
    with pytest.raises(ValueError, match="zip"):
        seen_by(each("number", [1, 2], ids=["one"]), "store")


def test_a_block_is_a_case_too():
    with pytest.raises(KeyError) as failed, case("a"):
        raise KeyError("x")
    assert failed.value.__notes__ == ["case: a"]
