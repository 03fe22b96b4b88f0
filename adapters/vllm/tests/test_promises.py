"""What vLLM's offloading is told: held only where all ranks have it, and told anew when asked."""

from hypothesis import example, given
from hypothesis import strategies as st

from hexkv.adapters.vllm.scheduler.promises import Promises


class Rank:
    """Has some blocks; answers when told to. Keeps count of what it holds."""

    def __init__(self, *blocks, at_once=True):
        self.blocks = set(blocks)
        self.at_once = at_once
        self.holding = set()
        self.given_up = set()
        self.full = False
        self.asked = []
        self._answers = {}
        self._number = 0

    def ask(self, op, tokens=b"", *, wanted=True, **said):
        self._number += 1
        self.asked.append(op)
        if op == "hold":
            if tokens in self.blocks:
                self.holding.add(said["ticket"])
            self._answers[self._number] = {"held": tokens in self.blocks}
        elif self.full:
            return 0
        elif op == "release":
            self.holding -= set(said["tickets"])
        elif op == "give_up":
            self.given_up |= set(said["tickets"])
        return self._number

    def take(self, number, seconds=0.0):
        return self._answers.pop(number, None) if self.at_once else None

    def drop(self, number):
        self._answers.pop(number, None)

    def close(self):
        pass


def promises(*ranks, now=lambda: 0.0):
    return Promises(ranks, 2.0, now)


def test_a_block_is_held_where_all_ranks_have_it():
    assert promises(Rank(b"a"), Rank(b"a")).held(b"a", 0, "r") is True


def test_what_one_rank_lacks_the_others_need_not_keep():
    ranks = Rank(b"a"), Rank()
    assert promises(*ranks).held(b"a", 0, "r") is False
    assert not ranks[0].holding


def test_a_block_stored_since_is_found_by_the_next_request():
    rank = Rank()
    told = promises(rank)
    assert told.held(b"a", 0, "first") is False
    rank.blocks.add(b"a")
    assert told.held(b"a", 0, "first") is False  # who was told so may have counted on it
    assert told.held(b"a", 0, "second") is True
    told.left("first")
    assert told.held(b"a", 0, "second") is True
    told.left("second")
    assert not rank.holding


def test_an_answer_that_nobody_waited_for_is_not_the_next_requests():
    """vLLM looks for a whole prompt at once, and stops listening at the first block it lacks."""
    rank = Rank(at_once=False)
    told = promises(rank)
    assert told.held(b"a", 0, "first") is None
    rank.blocks.add(b"a")
    rank.at_once = True
    assert told.held(b"a", 0, "second") is True


def test_a_request_that_comes_back_finds_what_it_stored_itself():
    rank = Rank()
    told = promises(rank)
    assert told.held(b"a", 0, "preempted") is False
    rank.blocks.add(b"a")
    told.stored([b"a"])
    assert told.held(b"a", 0, "preempted") is True


def test_a_rank_that_says_nothing_is_waited_for_until_the_deadline():
    rank, clock = Rank(b"a", at_once=False), [0.0]
    told = promises(rank, now=lambda: clock[0])
    assert told.held(b"a", 0, "r") is None
    clock[0] = 2.1
    assert told.held(b"a", 0, "r") is False
    assert not rank.holding


def test_a_block_stays_while_it_is_loaded_though_its_request_was_given_up():
    rank = Rank(b"a")
    told = promises(rank)
    assert told.held(b"a", 0, "r")
    _, [ticket] = told.load([(b"a", 0)], "r")
    told.left("r")
    assert rank.holding == {ticket}
    told.loaded([b"a"], "r")
    assert not rank.holding


def test_an_emptied_cache_holds_nothing_but_what_a_step_under_way_may_load():
    rank = Rank(b"a", b"b")
    told = promises(rank)
    assert told.held(b"a", 0, "r")
    assert told.held(b"b", 0, "r")
    _, [ticket] = told.load([(b"a", 0)], "r")
    rank.blocks.clear()
    told.forget()
    assert rank.holding == {ticket}
    assert told.held(b"a", 0, "r") is False
    for _ in range(16):
        told.step()
    assert not rank.holding


def test_a_block_that_nobody_looked_for_is_loaded_if_it_is_there():
    ranks = Rank(b"a"), Rank(b"a")
    _, [ticket] = promises(*ranks).load([(b"a", 0)], "r")
    assert [rank.holding for rank in ranks] == [{ticket}, {ticket}]


def test_a_load_waits_until_its_block_is_there_and_holds_up_nobody_else():
    ranks, clock = (Rank(b"a"), Rank()), [0.0]
    told = promises(*ranks, now=lambda: clock[0])
    _, [ticket] = told.load([(b"a", 0)], "waits")
    assert told.held(b"a", 0, "other") is False  # who computes and stores it
    ranks[1].blocks.add(b"a")
    told.stored([b"a"])
    told.step()
    assert not ranks[1].holding
    clock[0] = 2.1
    told.step()
    told.step()
    assert [rank.holding for rank in ranks] == [{ticket}, {ticket}]
    assert told.held(b"a", 0, "other") is True
    told.loaded([b"a"], "waits")
    told.left("waits")
    told.left("other")
    assert not ranks[0].holding
    assert not ranks[1].given_up


def test_a_block_that_was_told_to_be_missing_is_looked_for_again_when_it_is_loaded():
    rank = Rank()
    told = promises(rank)
    assert told.held(b"a", 0, "r") is False
    rank.blocks.add(b"a")
    _, [ticket] = told.load([(b"a", 0)], "r")
    assert rank.holding == {ticket}


def test_a_load_that_waits_is_given_up_with_its_request_and_with_no_other():
    rank = Rank(b"a")
    told = promises(rank)
    assert told.held(b"a", 0, "other")
    other, _ = told.load([(b"a", 0)], "other")
    load, _ = told.load([(b"a", 0), (b"b", 0)], "waits")
    told.forget()  # what is given up after it is given up nevertheless
    told.left("waits")
    assert rank.given_up == {load}
    told.left("other")
    assert rank.given_up == {load, other}


def test_what_a_rank_has_no_room_to_be_told_it_is_told_later():
    rank = Rank(b"a")
    told = promises(rank)
    assert told.held(b"a", 0, "r")
    rank.full = True
    told.left("r")
    assert rank.holding
    rank.full = False
    told.step()
    assert not rank.holding


KEYS = st.sampled_from([b"a", b"b", b"c"])
NAMES = st.sampled_from(["p", "q", "r"])
DONE = st.one_of(
    st.tuples(st.just("held"), KEYS, NAMES),
    st.tuples(st.just("load"), KEYS, NAMES),
    st.tuples(st.just("loads"), NAMES),
    st.tuples(st.just("left"), NAMES),
    st.tuples(st.just("appears"), KEYS),
    st.tuples(st.just("forget")),
    st.tuples(st.just("step")),
    st.tuples(st.just("mute"), st.booleans()),
)


@given(st.lists(DONE, max_size=40), st.sets(KEYS))
@example([("mute", True), ("load", b"a", "p"), ("loads", "p"), ("forget",)], {b"a"})
@example([("mute", True), ("load", b"a", "p"), ("forget",), ("mute", False), ("step",)], {b"a"})
def test_whatever_happens_nothing_stays_held_when_all_requests_have_left(history, first):
    ranks = Rank(*first), Rank(*first)
    told = promises(*ranks)
    loads = {}
    for what, *rest in history:
        if what == "held":
            key, name = rest
            if told.held(key, 0, name):
                assert all(rank.holding for rank in ranks)
                told.load([(key, 0)], name)
                told.loaded([key], name)
        elif what == "load":
            key, name = rest
            if name not in loads:
                _, [ticket] = told.load([(key, 0)], name)
                loads[name] = key, ticket
        elif what == "loads":
            key, ticket = loads.get(rest[0], (b"", 0))
            if all(ticket in rank.holding for rank in ranks):
                told.loaded([key], rest[0])
                del loads[rest[0]]
        elif what == "left":
            told.left(*rest)
            if rest[0] in loads:  # it is given up
                told.loaded([loads.pop(rest[0])[0]], rest[0])
        elif what == "appears":
            ranks[0].blocks.add(*rest)
        elif what == "mute":
            ranks[1].at_once = not rest[0]
        else:
            getattr(told, what)()
            if what == "forget":
                loads.clear()
    for name in "pqr":
        told.left(name)
        if name in loads:
            told.loaded([loads[name][0]], name)
    for _ in range(16):
        told.step()
    assert [rank.holding for rank in ranks] == [set(), set()]
