"""Saves run behind the steps: no step waits for one, and none stores another request's KV."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event, Thread, get_ident

import pytest

from counting import no_collection
from engines.vllm.vllm_plans import CHUNK as PLANNED
from engines.vllm.vllm_plans import Rank as Answers
from engines.vllm.vllm_plans import arrive, blocks, half, request, step
from engines.vllm.vllm_rank import ALL, CHUNK, MINE, OTHER, Rank, load, save
from hexkv.adapters.vllm.messages import Reused, Step
from hexkv.adapters.vllm.metrics.metrics import DROPPED_TOKENS, STORED_TOKENS
from hexkv.adapters.vllm.worker import worker_connector
from hexkv.adapters.vllm.worker.pending_saves import LATE, PendingSaves
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.kit.cases import each
from hexkv.ports import EngineBusy
from processes import until

PATIENCE = 60.0


class Hanging:
    """The copies of one rank: each stops before it begins, or before it ends, until :meth:`go`."""

    def __init__(self, rank, where):
        self.at, self._go, self._where = Event(), Event(), where
        self._windows = rank.half._saving._windows
        rank.half._saving._windows = self

    def go(self):
        self._go.set()

    def window(self, blocks, start):
        self._window = self._windows.window(blocks, start)
        return self

    @property
    def layout(self):
        return self._window.layout

    @property
    def tokens(self):
        if self._where == "before it begins":
            self._stop()
        return self._window.tokens

    def gather(self, spans, layers=None):
        self._copy = self._window.gather(spans, layers)
        return self

    def wait(self, deadline):
        if self._where == "before it ends":
            self._stop()
        return self._copy.wait(deadline)

    def _stop(self):
        self.at.set()
        assert self._go.wait(PATIENCE)


@pytest.fixture
def rank():
    rank = Rank()
    yield rank
    rank.half.close()


def run(rank, step):
    """One step, which does not wait for its saves."""
    rank.half.prepare(step)
    rank.half.start(step)
    rank.half.end_loads(step)
    rank.half.save(step)


def counts(rank):
    found = rank.half.tally.take()
    return found.get(STORED_TOKENS, 0), found.get(DROPPED_TOKENS, 0)


PLACES = ["before it begins", "before it ends"]


@pytest.mark.parametrize("where", PLACES)
def test_steps_go_on_while_a_save_hangs_and_its_request_keeps_its_blocks(rank, where):
    copies = Hanging(rank, where)
    run(rank, Step(1, saves=[save()]))
    assert copies.at.wait(PATIENCE)
    for number, ended in ((2, ["s", "saved nothing"]), (3, [])):
        run(rank, Step(number))
        assert rank.half.saved(ended) == set(ended) - {"s"}
        assert rank.half.saved_steps() == {}
    copies.go()
    assert rank.half._saving.wait(PATIENCE)
    assert [rank.half.saved([]) for _ in range(2)] == [{"s"}, set()], "they are given back once"
    rank.half._saving._thread.submit(lambda: None).result(PATIENCE)
    assert rank.half.saved_steps() == {1: 1}
    assert (rank.find(), counts(rank)) == (ALL, (ALL, 0))


def bytecodes(*hooks):
    """The bytecodes of this project that *hooks* run in this thread."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_globals.get("__name__", "").startswith("hexkv."):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    with no_collection():
        sys.settrace(trace)
        try:
            for hook in hooks:
                hook()
        finally:
            sys.settrace(before)
    return count


def test_a_steps_thread_marks_the_place_of_all_its_saves_and_does_nothing_for_a_chunk(
    rank, monkeypatch
):
    """The bound of 0.3 ms a chunk on a step's thread, as a number of bytecodes.

    The thread of a step that saves one chunk runs some 1,300 bytecodes in all hooks of the
    scheduler and the worker, and 0.14 ms by its CPU time: 0.14 ms a chunk. A step that saves 16
    chunks of 256 tokens runs as many: 0.01 ms a chunk, with the packing of their tokens. So 0.3 ms
    are some 2,700 bytecodes.
    """
    threads, marks = set(), []

    def noting(target, name):
        real = getattr(target, name)

        def noted(*given, **more):
            threads.add(get_ident())
            return real(*given, **more)

        monkeypatch.setattr(target, name, noted)

    for target, name in ((rank.engine, "store"), (rank.half._saving._windows, "window")):
        noting(target, name)
    monkeypatch.setattr(rank.half._saving, "_beside", lambda: marks.append(1) or nullcontext())
    monkeypatch.setattr("hexkv.adapters.vllm.worker.saving._TURN", PATIENCE)
    halves = [save(end=ALL // 2), save(start=ALL // 2)]
    for number in range(3):
        run(rank, Step(2 * number, saves=halves))
        assert not rank.half._saving._turn.is_set(), "saves wait for the next step's launches"
        assert number or not threads
        run(rank, Step(2 * number + 1))
        assert rank.half._saving._turn.is_set()
    assert rank.half._saving.wait(PATIENCE)
    assert (len(threads), threads & {get_ident()}, len(marks)) == (1, set(), 3)
    assert rank.find() == ALL

    counts = []
    for chunks in (4, 16):
        tokens, saved = PLANNED * chunks, Step(7, saves=[save(end=CHUNK * chunks // 4)])
        plan = allotted(tokens)
        counts.append(
            bytecodes(
                lambda plan=plan, tokens=tokens: step(plan, "r", 0, tokens, blocks(tokens)),
                lambda saved=saved: run(rank, saved),
                lambda: rank.half.saved([]),
                lambda: rank.half.arrived(),
                lambda plan=plan: plan.done((), rank.half.finished_steps()),
                lambda plan=plan: plan.reading.over({1: 1}),
            )
        )
    assert counts[0] == counts[1] <= 2000


@each("where", PLACES)
@each("cause", ["reused", "late", "unknown step", "failed plan"])
def test_nothing_is_stored_of_blocks_that_others_got_before_they_were_copied(where, cause):
    rank, clock = Rank(), ManualClock()
    rank.half._saving.pending = PendingSaves(clock.now)
    try:
        copies = Hanging(rank, where)
        run(rank, Step(1, saves=[save()]))
        assert copies.at.wait(PATIENCE)
        if cause == "late":
            assert rank.half.saved(["s"]) == set()
            clock.advance(LATE)
            assert rank.half.saved([]) == {"s"}
        reused = [Reused(1, "s"), Reused(7, "other")]
        rank.half.prepare(
            {
                "reused": Step(2, reused=reused),
                "failed plan": Step(2, replaced=True),
                "unknown step": None,
            }.get(cause, Step(2))
        )
        for cache in rank.caches.values():
            cache[MINE] = 7.0
        copies.go()
        assert rank.half._saving.wait(PATIENCE)
        assert (rank.find(), counts(rank)) == (0, (0, ALL))
        assert set(rank.engine.health().leases) <= {"memory"}
        rank.half.prepare(Step(3, reused=[Reused(1, "s")]))
        run(rank, Step(3, saves=[save(blocks=OTHER)]))
        assert rank.half._saving.wait(PATIENCE)
        assert rank.find(name="again") == ALL
    finally:
        rank.half.close()


def test_blocks_that_others_got_after_they_were_copied_lose_nothing(rank):
    run(rank, Step(1, saves=[save()]))
    assert rank.half._saving.wait(PATIENCE)
    before = {name: cache[MINE].clone() for name, cache in rank.caches.items()}
    rank.half.prepare(Step(2, reused=[Reused(1, "s")]))
    for cache in rank.caches.values():
        cache[MINE] = 7.0
    run(rank, Step(2, loads=[load()]))
    assert not rank.half.bad_blocks()
    assert all((rank.caches[name][OTHER] == kept).all() for name, kept in before.items())


def test_a_save_under_way_brings_nothing_back_behind_a_clear(rank):
    copies = Hanging(rank, "before it ends")
    rank.desk.before_clear = rank.half.void_saves
    run(rank, Step(1, saves=[save()]))
    assert copies.at.wait(PATIENCE)
    clear, none = {"op": "clear", "tiers": ["memory"]}, memoryview(b"")
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(rank.desk, clear, none)
        until(lambda: all(pending.void for pending in rank.half._saving.pending._saves))
        copies.go()
        assert answer.result(PATIENCE) == {"chunks": 0, "left": {}}
    assert rank.half._saving.wait(PATIENCE)
    assert rank.find() == 0


def test_vllm_sleeps_once_saves_under_way_have_been_copied(rank, monkeypatch):
    copies = Hanging(rank, "before it ends")
    run(rank, Step(1, saves=[save()]))
    assert copies.at.wait(PATIENCE)
    monkeypatch.setattr(worker_connector, "_LEAVING", 0.01)
    with pytest.raises(EngineBusy, match="being saved"):
        rank.half.leave()
    monkeypatch.undo()
    leaving = Thread(target=rank.half.leave)
    leaving.start()
    copies.go()
    leaving.join(PATIENCE)
    assert rank.find() == ALL


def test_what_is_under_way_at_the_end_is_stored_and_one_failure_costs_one_save(rank, monkeypatch):
    store, failed = rank.engine.store, []

    def fails_once(*given, **more):
        if not failed:
            failed.append(given)
            raise ZeroDivisionError("as a bug would")
        return store(*given, **more)

    monkeypatch.setattr(rank.engine, "store", fails_once)
    monkeypatch.setattr(rank.engine, "close", lambda: None)
    run(rank, Step(1, saves=[save(), save()]))
    rank.half.close()
    assert counts(rank) == (ALL, ALL)
    assert rank.find() == ALL
    monkeypatch.undo()


def allotted(tokens, ranks=1, **settings):
    """A plan whose request ``r`` has its blocks."""
    plan = half(*(Answers() for _ in range(ranks)), **settings)
    name = arrive(plan, request(tokens))
    plan.matched(name, 0)
    plan.allocated(name, blocks(tokens), 0)
    return plan


def planned(ranks=1, **settings):
    """A plan that saves the only chunk of request ``r``, in blocks 1 and 2."""
    plan = allotted(PLANNED, ranks, **settings)
    made = step(plan, "r", 0, PLANNED, blocks(PLANNED))
    assert [one.end for one in made.saves] == [PLANNED]
    return plan, made


def test_a_request_keeps_its_blocks_until_every_rank_has_copied_them():
    plan, made = planned(ranks=2)
    assert (plan.reading.keeps("r"), plan.reading.keeps("other")) == (True, False)
    plan.left("r")
    plan.reading.over({made.number: 1})
    assert plan.reading.keeps("r")
    plan.reading.over({made.number: 1})
    assert not plan.reading.keeps("r")


@each("loads", [False, True])
def test_blocks_that_another_request_gets_void_the_save_that_reads_them(loads):
    plan, made = planned()
    other = arrive(plan, request(2 * PLANNED, "other"), writes=False)
    plan._requests[other].local = PLANNED
    got = [1, 5, 2, 6] if loads else [1, 2, 5, 6]
    plan.allocated(other, got, PLANNED if loads else 0)
    # Blocks of the prefix are shared, and not written.
    told = step(plan, other, 2 * PLANNED if loads else PLANNED, 1, got)
    assert told.reused == ([Reused(made.number, "r")] if loads else [])
    again = step(plan, "unknown", 0, PLANNED, [2, 9], replaces=False)
    assert again.reused == ([] if loads else [Reused(made.number, "r")])
    assert not plan.reading.keeps("r")


def test_a_preempted_request_that_loads_again_is_given_back_by_its_load_alone():
    """vLLM frees the blocks of such a request itself, and must not do so twice."""
    plan, made = planned()
    plan.matched("r", 0)
    assert not plan.reading.keeps("r")
    assert step(plan, "other", 0, 1, [1]).reused == [Reused(made.number, "r")]
