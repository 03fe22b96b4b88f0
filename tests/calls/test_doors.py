"""Who may call an engine: one thread once at a time, in the process where it was opened.

A signal handler runs in the middle of a call and a forked child with locks that nobody will ever
release; both are told so, and neither waits for what cannot come.
"""

import os
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from itertools import count

import pytest
from stepping import (
    CALLS,
    TAILS,
    TOKENS,
    Interrupt,
    first_visits,
    kv,
    retrieve,
    retrieve_layers,
    store,
)

from configured import CHUNK as CONFIGURED_CHUNK
from configured import FRAME, NAMESPACE, PROMPT, computed
from depth import thorough
from dict_store import ScanningStore
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import (
    ChunkSpec,
    Deadline,
    EngineBusy,
    EngineClosed,
    InvalidRequest,
    StoreUnreachable,
)
from layered import Ranged, memory
from peers.peering import eventually
from rigging import CHUNK, LAYOUT, PATIENCE, tier

ELSE = list(range(7_000, 7_000 + CHUNK))


def specs_of(engine, tokens):
    space, starts = engine.key_space(), range(0, len(tokens), CHUNK)
    return [
        ChunkSpec(key, space.identity, LAYOUT, min(CHUNK, len(tokens) - start), position=start)
        for key, start in zip(engine.chunk_keys(tokens), starts, strict=True)
    ]


def hold_and_publish(engine):
    specs = specs_of(engine, TOKENS)
    until = Deadline.after(engine._clock, PATIENCE)
    with engine.chunks.hold(specs, "host", until) as hold:
        assert hold.wait(until)
        assert engine.chunks.publish(hold.leases, None, until).wait(until)


class Doors:
    """Every way into an engine, with objects in hand that an earlier call gave."""

    def __init__(self, engine):
        engine.store(ELSE, kv(ELSE))
        self.engine = engine
        specs = specs_of(engine, ELSE)
        keys = [spec.key for spec in specs]
        until = Deadline.after(engine._clock, PATIENCE)
        self.hold = engine.chunks.hold(specs, "handler", until)
        assert self.hold.wait(until)
        (self.lease,) = engine.chunks.allocate(specs, "handler", until)
        self.published = engine.chunks.publish(self.hold.leases, None, until)
        assert self.published.wait(until)
        self._reading = engine.retrieve_layers(ELSE, HeapKV(LAYOUT, len(ELSE)))
        self._writing = engine.store_layers(ELSE, kv(ELSE))
        read, write = self._reading.__enter__(), self._writing.__enter__()
        now = Deadline(engine._clock, 0.0)
        chunks = engine.chunks
        self.all = (
            lambda: engine.lookup(ELSE),
            lambda: engine.prefetch("b", ELSE),
            lambda: engine.cancel("b"),
            lambda: engine.retrieve(ELSE, HeapKV(LAYOUT, len(ELSE))),
            lambda: engine.store(ELSE, kv(ELSE)),
            lambda: engine.pin(ELSE, "handler"),
            lambda: engine.unpin("handler"),
            lambda: engine.clear(TOKENS[: CHUNK - 1]),
            lambda: engine.chunk_keys(ELSE),
            lambda: engine.explain(ELSE),
            lambda: engine.freeze(False),
            lambda: engine.flush(0.0),
            lambda: engine.key_space(),
            lambda: engine.health(),
            lambda: chunks.match(keys, now),
            lambda: chunks.hold(specs, "handler", now).release(),
            lambda: [lease.release() for lease in chunks.allocate(specs, "handler", now)],
            lambda: chunks.unpin("handler"),
            lambda: chunks.flush(now),
            lambda: self.hold.done,
            lambda: self.hold.wait(now),
            lambda: self.hold.leases,
            lambda: self.hold.reasons,
            lambda: self.published.done,
            lambda: self.published.wait(now),
            lambda: self.published.tiers,
            lambda: self.lease.share("handler").release(),
            lambda: next(read),
            lambda: read.result(),
            lambda: write.layer_done(0),
            lambda: write.result(),
        )

    def give_back(self):
        self._reading.__exit__(None, None, None)
        self._writing.__exit__(None, None, None)
        self.hold.release()
        self.lease.release()


def ready(rig, call):
    """An engine on which *call* has something to do."""
    slow = tier("slow", Ranged() if call is retrieve_layers else ScanningStore({}))
    r = rig([memory(), slow], slots=24, chunker=TAILS)
    assert r.engine.flush()
    if "store" not in call.__name__:
        r.engine.store(TOKENS, kv(TOKENS))
        r.engine.clear(TOKENS, tiers=["memory"])
    return r


@pytest.mark.parametrize(
    "calls", [[store, retrieve_layers, hold_and_publish], *thorough(list(CALLS))]
)
def test_a_handler_in_the_middle_of_a_call_is_told_so_at_every_door(rig, calls):
    for call in calls:
        r = ready(rig, call)
        doors, busy, let_in = Doors(r.engine), 0, 0

        def handler(doors=doors):
            nonlocal busy, let_in
            for door in doors.all:
                try:
                    door()
                except EngineBusy:
                    busy += 1
                except (InvalidRequest, StopIteration):  # those layers have come already
                    let_in += 1
                else:
                    let_in += 1

        with Interrupt(act=handler, every=True) as interrupt:
            call(r.engine)
        assert busy > len(interrupt.lines)
        assert let_in > 0
        doors.give_back()
        r.engine.store(TOKENS, kv(TOKENS))
        target = HeapKV(LAYOUT, len(TOKENS))
        assert r.engine.retrieve(TOKENS, target).hit_tokens == len(TOKENS)
        assert target.agrees(kv(TOKENS), len(TOKENS))
        assert r.engine.flush()
        assert r.at_rest(), call.__name__


@pytest.mark.parametrize(
    ("call", "step"), [(store, 12), (retrieve, 12), *thorough((store, 3), (retrieve, 3))]
)
def test_what_a_handler_closes_or_releases_goes_when_the_call_is_over(rig, call, step):
    r = ready(rig, call)
    with Interrupt() as interrupt:
        call(r.engine)
    over = 0
    for number in first_visits(interrupt.lines)[::step]:
        r = ready(rig, call)
        until = Deadline.after(r.clock, PATIENCE)
        specs = specs_of(r.engine, ELSE)
        hold = r.engine.chunks.hold(specs, "handler", until)
        (lease,) = r.engine.chunks.allocate(specs, "handler", until)

        def handler(r=r, hold=hold, lease=lease):
            hold.release()
            lease.release()
            r.engine.close()

        # Closed where the handler came before the call had begun.
        with suppress(EngineClosed), Interrupt(number, handler) as interrupt:
            call(r.engine)
            over += 1
        if interrupt.where is None:  # this time the call had to wait for less, and was over before
            handler()
        assert r.engine.health().state == "closed", interrupt.where
        assert hold.leases == []
        assert r.given_back(), interrupt.where
        with pytest.raises(EngineClosed):
            r.engine.lookup(TOKENS)
    assert over > 10


def test_a_forked_child_is_told_to_open_an_engine_of_its_own(rig):
    r = ready(rig, store)
    doors = Doors(r.engine)
    first = count(max(TOKENS) + 1)

    def store_new():
        """One that was named before would take fewer lines."""
        tokens = [next(first), *TOKENS[1:]]
        r.engine.store(tokens, kv(tokens))

    def wrong():
        """What a child finds wrong."""
        for number, door in enumerate((*doors.all, lambda: r.engine.telemetry)):
            try:
                door()
            except EngineClosed as error:
                if "open an engine in the child" not in str(error):
                    return 100
            else:
                return 1 + number
        ledger = dict(r.pool._ledger.held)
        doors.give_back()
        r.engine.close()
        with warnings.catch_warnings(action="error"):
            r.engine._calls._dropped()
        return 101 if r.engine._calls.state != "open" or r.pool._ledger.held != ledger else 0

    def handler():
        child = os.fork()
        if not child:
            signal.alarm(int(PATIENCE))  # a hang ends the child
            found = 102
            try:
                found = wrong()
            finally:
                os._exit(found)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"status {status} of a child forked at {interrupt.where}"

    with Interrupt() as interrupt:
        store_new()
    r.engine.clear()
    for number in first_visits(interrupt.lines)[::24]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork, from Python 3.12 on
            with Interrupt(number, handler) as interrupt:
                store_new()
        assert interrupt.where is not None
        r.engine.clear()
    doors.give_back()
    assert r.engine.flush()
    assert r.at_rest()


def test_an_engine_that_is_dropped_says_so_and_leaves_no_threads(tmp_path):
    before = set(threading.enumerate())
    settings = {
        "chunk": {"size": CONFIGURED_CHUNK},
        "pool": {"bytes": 64 * FRAME},
        "tiers": [{"store": "memory"}, {"store": "disk", "settings": {"root": str(tmp_path)}}],
    }
    loaded = load(None, {}, settings)
    engine = build(loaded, NAMESPACE)
    engine.store(PROMPT, computed())
    threads = set(threading.enumerate()) - before
    assert len(threads) >= 8
    engines = [engine]
    del engine
    with pytest.warns(ResourceWarning, match="close it, or use it as a context manager"):
        engines.clear()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    with build(loaded, NAMESPACE) as again:
        assert again.lookup(PROMPT).hit_tokens > 0


def _on_disk(root):
    return load(
        None,
        {},
        {
            "chunk": {"size": CONFIGURED_CHUNK},
            "pool": {"bytes": 64 * FRAME},
            "tiers": [{"store": "memory"}, {"store": "disk", "settings": {"root": str(root)}}],
        },
    )


def test_an_engine_closes_its_stores_where_no_thread_can_start(tmp_path, monkeypatch):
    engine = build(_on_disk(tmp_path), NAMESPACE)
    engine.store(PROMPT, computed())

    def start(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(StoreUnreachable, match="can't start new thread"):
            build(_on_disk(tmp_path / "other"), NAMESPACE)
        engine.close()
    assert (engine.health().state, engine.health().leases) == ("closed", {})
    with build(_on_disk(tmp_path), NAMESPACE) as again:  # the folder's lock is free
        assert again.lookup(PROMPT).hit_tokens > 0


AT_EXIT = """
import atexit, sys
from hexkv.plugins.composition.compose import build
sys.path[:0] = {lib!r}
from configured import NAMESPACE, PROMPT, computed
from hexkv.plugins.configuration.config import load

class Late:
    def __init__(self, root):
        settings = dict(chunk=dict(size={chunk}), pool=dict(bytes={pool}), tiers=[
            dict(store="memory"), dict(store="disk", settings=dict(root=root))])
        self.engine = build(load(None, {{}}, settings), NAMESPACE)
        self.engine.store(PROMPT, computed())
    def end(self, when):
        self.engine.close()
        print(when, self.engine.health().state, dict(self.engine.health().leases), flush=True)
    def __del__(self):
        self.end("finalizing")

first, second = Late({root!r} + "/1"), Late({root!r} + "/2")
atexit.register(first.end, "at exit")
"""


def test_an_engine_closes_at_the_exit_and_the_finalization_of_the_interpreter(tmp_path):
    lib = [path for path in sys.path if path]
    code = AT_EXIT.format(lib=lib, root=str(tmp_path), chunk=CONFIGURED_CHUNK, pool=64 * FRAME)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    closed = ["at exit closed {}", "finalizing closed {}", "finalizing closed {}"]
    assert (ended.stdout.splitlines(), ended.stderr) == (closed, "")


def test_a_call_that_comes_while_an_engine_closes_is_refused_and_not_waited_for():
    settings = {"pool": {"bytes": 64 * FRAME}, "tiers": [{"store": "memory"}]}
    engine = build(load(None, {}, settings), NAMESPACE)
    calls, closing = engine._calls, threading.Thread(target=engine.close)

    class Listed(dict):
        def __setitem__(self, owner, life):
            super().__setitem__(owner, life)
            closing.start()
            eventually(lambda: calls.state == "closing")
            with calls._lock:
                pass  # which is free once the close waits for this call

    calls._owners, calls._seconds = Listed(), 10 * PATIENCE
    with pytest.raises(EngineClosed):
        engine.lookup(PROMPT)
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert calls.state == "closed"
