"""Names over a cache by key agree with what it has, whatever is kept, deleted and evicted."""

from contextlib import ExitStack, contextmanager

from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.adapters.lmserver.values import ServedValues
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from processes import PATIENCE

BUDGET = 20 * 4096
REGISTRY = discover()
names = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])
sizes = st.integers(0, 5 * 4096)
steps = st.lists(
    st.tuples(st.sampled_from(["keep", "delete", "give up"]), names, sizes), max_size=30
)


@contextmanager
def opened(directory=None):
    served = ServedValues(
        ["hexkv", "lm"],
        REGISTRY,
        SystemClock(),
        budget=BUDGET,
        transit=2 * BUDGET,
        largest=18 * 4096,
        directory=directory,
    )
    with served:
        yield served


def put(values, *items, give_up=False):
    with ExitStack() as held:
        rooms = [held.enter_context(values.room(name, len(data), 0.0)) for name, data in items]
        for room, (_, data) in zip(rooms, items, strict=True):
            room.data[:] = data
        return [] if give_up else values.keep(rooms)


def get(values, name):
    with values.lent(name, PATIENCE) as lent:
        return None if lent is None else bytes(lent)


def get_each(values, wanted):
    """All that *wanted* name, taken in runs as a session takes them."""
    found = []
    while len(found) < len(wanted):
        with values.lent_run(wanted[len(found) :], PATIENCE) as run:
            found += map(bytes, run)
        if not run:
            found.append(get(values, wanted[len(found)]))
    return found


def listed(values):
    return {kept.name: kept.size for kept in values.list(b"", 100)}


def agree(served, values, model):
    """The names are of values that are there, and each is the last one that was kept."""
    found = listed(values)
    assert found.keys() <= model.keys()
    assert found == {name: len(model[name]) for name in found}
    assert values.contains(list(model)) == [name in found for name in model]
    assert {name: get(values, name) for name in model} == {
        name: model[name] if name in found else None for name in model
    }
    wanted = [b"never", *sorted(model), b"never", *model]
    assert get_each(values, wanted) == [get(values, name) for name in wanted]
    tier = served._served._stack.tiers[0]
    assert len(tier.index) == len(found), "a value has no name, or a name no value"
    assert tier.index.used <= BUDGET


@settings(max_examples=40, deadline=None)
@given(steps)
def test_names_and_the_cache_agree_after_every_step(changes):
    model = {}
    with opened() as served:
        values = served.of("hexkv")
        for number, (step, name, size) in enumerate(changes):
            data = bytes([number]) * size
            if step == "delete":
                was_there = name in listed(values)
                assert values.delete([name]) == [was_there]
                model.pop(name, None)
            elif step == "keep":
                assert put(values, (name, data)) == [True]
                model[name] = data
            else:
                put(values, (name, data), give_up=True)
            agree(served, values, model)
        left = served._served._stack.pool.ledger()
        assert set(left) <= {"memory store"}


def test_a_reader_keeps_the_version_that_it_has_and_the_next_one_gets_the_new():
    with opened() as served:
        values, other = served.of("hexkv"), served.of("lm")
        assert put(values, (b"a", b"old"), (b"b", b"beside")) == [True, True]
        with values.lent(b"a", PATIENCE) as old:
            assert put(values, (b"a", b"newer"), (b"a", b"newest")) == [True, True]
            assert bytes(old) == b"old"
            assert get(values, b"a") == b"newest"
            assert values.delete([b"a"]) == [True]
            assert bytes(old) == b"old"
        assert listed(values) == {b"b": 6}
        assert get(other, b"b") is None, "another wire's"


def test_a_run_is_bounded_and_ends_before_what_is_not_there():
    with opened() as served:
        values = served.of("hexkv")
        assert put(values, (b"a", b"1"), (b"b", b"2")) == [True, True]
        with values.lent_run([b"a", b"b", b"a"], PATIENCE) as run:
            assert [bytes(value) for value in run] == [b"1", b"2", b"1"]
        with values.lent_run([b"b", b"none", b"a"], PATIENCE) as run:
            assert [bytes(value) for value in run] == [b"2"]
        with values.lent_run([b"a"] * 100, PATIENCE) as run:
            assert len(run) == 64


def test_a_directory_gives_back_the_latest_versions_and_nothing_damaged(tmp_path):
    def files():
        return {path.read_bytes()[4096:4100]: path for path in tmp_path.glob("??/*.hexkv")}

    with opened(tmp_path) as served:
        values = served.of("hexkv")
        for data in (b"1st.", b"2nd."):
            assert put(values, (b"a", data), (b"b", b"good"), (b"c", b"torn")) == [True] * 3
        assert put(served.of("lm"), (b"a", b"lm's")) == [True]
        assert files().keys() == {b"2nd.", b"good", b"torn", b"lm's"}, "versions are left"
    with files()[b"torn"].open("r+b") as file:
        file.seek(4096)
        file.write(b"T")
    with opened(tmp_path) as served:
        values = served.of("hexkv")
        assert [get(values, name) for name in (b"a", b"b")] == [b"2nd.", b"good"]
        assert listed(served.of("lm")) == {b"a": 4}
        assert get(values, b"c") is None
        assert listed(values) == {b"a": 4, b"b": 4}


def test_values_on_their_way_in_evict_nothing(tmp_path):
    data = bytes(4096 * 18)
    for directory in (None, tmp_path):
        with opened(directory) as served, ExitStack() as held:
            values = served.of("hexkv")
            assert put(values, (b"a", data)) == [True]
            rooms = [
                held.enter_context(values.room(b"big", len(data), 0.0 if number else 1.0))
                for number in range(9)
            ]
            assert [room is not None for room in rooms] == [True] * 2 + [False] * 7
            assert get(values, b"a") == data
