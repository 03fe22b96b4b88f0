"""No block is used again, and no page read or written, while a copy may still touch it.

An engine, the cache's windows on streams of their own, the copier and the pool work on a recording
double of ``torch.cuda`` by random schedules; the engine replays CUDA graphs that use all pages. So
does SGLang with the linker's copies, layer by layer in a thread beside it. Then the same with one
wait left out, which is to be seen: what no schedule shows, nobody would miss.
"""

import random
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace

import pytest
import torch
from stepping import Interrupt

from devices.recorded_streams import Captured, Queue, Race, recorded
from engines.sglang.linked_streams import LAYOUT, PAGES, SIZE, Linked, address
from hexkv.adapters.cuda import streams
from hexkv.adapters.cuda.streams import CudaKV
from hexkv.adapters.sglang.pages import devices
from hexkv.adapters.vllm.worker import streams as beside_the_model
from hexkv.contracts.doubles import ManualClock
from hexkv.core.memory.copying import LOST, Copier, Copy
from hexkv.core.memory.pool import BlockPool
from hexkv.kernels import waiting
from hexkv.kernels.gpu import staging
from hexkv.kernels.gpu.staging import DeviceStaging, Sent
from hexkv.kernels.paged import PagedMemory
from hexkv.kernels.transfer import transfer_on
from hexkv.plugins.threads import Threads
from hexkv.ports import (
    Deadline,
    InvalidRequest,
    PoolExhausted,
    Span,
    frame_bytes,
)
from rigging import Heap

SLOTS, STEPS = 3, 60
SEEDS = range(40)


class Engine:
    """What a host does that keeps the rules of ``CudaKV``, in an order that is drawn."""

    def __init__(self, recorder, draw):
        self.recorder, self.draw = recorder, draw
        self.clock = ManualClock()
        frame = frame_bytes(SIZE)
        self.pool = BlockPool(Heap(SLOTS * frame), frame, poison=True, executor=Threads())
        self.copier = Copier(None)
        self.blocks = {}
        self.cuda = CudaKV("cuda:0")
        planes = [[torch.zeros(PAGES, 1, 1, 8, dtype=torch.float16) for _ in "kv"]]
        self.memory = PagedMemory(LAYOUT, planes, fused=True)
        self.memory.fused.staging = DeviceStaging(Queue(recorder, self.blocks))
        self.computing = recorder.default
        self.graph = torch.cuda.CUDAGraph()
        pages = [("page", page) for page in range(PAGES)]
        with torch.cuda.graph(self.graph):
            name = "the model's graph"
            recorder.use(torch.cuda.current_stream(), name, reads=pages, writes=pages)
            span = [Span(0, 1, memoryview(bytearray(SIZE)))]
            for refused in (self.cuda.fence, lambda: self.window().gather(span)):
                with pytest.raises(InvalidRequest, match="captured"):
                    refused()

    def window(self):
        return self.cuda._streamed(self.memory.window(range(PAGES)))

    def block(self):
        """A block of the pool, which the host writes: a read from a disk, or a new header."""
        self.copier.reap(self.now())
        try:
            lease = self.pool.lease(SIZE, "test", self.now())
        except PoolExhausted:
            return None
        name = self.blocks.setdefault(address(lease.payload), len(self.blocks))
        self.recorder.use(None, "the host, which fills a block,", writes=[("block", name)])
        return lease

    def step(self):
        page = self.draw.randrange(PAGES)
        kinds = ["compute", "replay", "store", "load", "load beside", "both", "reap"]
        kind = self.draw.choice(kinds)
        if kind == "compute":
            self.recorder.use(self.computing, "the model", writes=[("page", page)])
        elif kind == "replay":
            self.graph.replay()
        elif kind == "reap":
            self.copier.reap(self.later() if self.draw.random() < 0.3 else self.now())
        elif (lease := self.block()) is not None:
            if kind == "both":
                self.both(page, lease)
            else:
                self.copy(kind, page, lease)

    def copy(self, kind, page, lease):
        gather, window = kind == "store", self.window()
        until = self.later() if self.draw.random() < 0.5 else self.now()
        self.recorder.use(self.computing, "the model", writes=[("page", page)])
        around = nullcontext()
        if kind == "load beside":
            # As vLLM's worker: behind what the model had queued when it was asked.
            window = self.memory.window(range(PAGES))
            around = beside_the_model._Stream(torch.device("cuda", 0))
        with around:
            span = [Span(page, page + 1, lease.payload)]
            done = self.copier.copy(window, span, [lease], "test", until, gather=gather)
        if done and gather:
            name = self.blocks[address(lease.payload)]
            self.recorder.use(None, "the host, which stores a block,", reads=[("block", name)])
        self.copier.release([lease])
        if kind == "load beside" and not done:
            self.copier.reap(self.later())  # vLLM gives no page away that is being loaded
        elif not done or self.draw.random() < 0.5:
            self.cuda.fence()
        self.recorder.use(self.computing, "attention", reads=[("page", page)])
        self.recorder.use(self.computing, "the model", writes=[("page", page)])

    def both(self, page, lease):
        """One window, both ways at once, of pages that nothing else waits for."""
        other = self.block()
        if other is None:
            self.copier.release([lease])
            return
        window, next_ = self.window(), (page + 1) % PAGES
        for gather, at, of in ((True, page, lease), (False, next_, other)):
            span = [Span(at, at + 1, of.payload)]
            self.copier.copy(window, span, [of], "test", self.now(), gather=gather)
        self.copier.release([lease, other])
        self.cuda.fence()

    def chunks(self, pages, gather, around=nullcontext()):  # noqa: B008 - it has no state
        """Several chunks by one call, and their memory again as soon as it is released."""
        leases = [self.block() for _ in pages]
        spans = [Span(at, at + 1, of.payload) for at, of in zip(pages, leases, strict=True)]
        with suppress(RuntimeError, KeyboardInterrupt), around:
            self.copier.copy(self.window(), spans, leases, "test", self.now(), gather=gather)
        self.copier.release(leases)
        self.copier.release([again for _ in pages if (again := self.block()) is not None])
        self.clock.advance(LOST)
        self.copier.reap(self.later())

    def now(self):
        return Deadline(self.clock, 0.0)

    def later(self):
        return Deadline.after(self.clock, 1e9)


def schedules(monkeypatch):
    for seed in SEEDS:
        draw = random.Random(seed)
        with recorded(draw, monkeypatch) as recorder:
            linked = Linked(recorder, draw)
            for _ in range(STEPS // 3):
                linked.step()
    for seed in SEEDS:
        draw = random.Random(seed)
        with recorded(draw, monkeypatch) as recorder:
            engine = Engine(recorder, draw)
            for _ in range(STEPS):
                engine.step()
            engine.copier.reap(engine.later())
            assert engine.pool.ledger() == {}


@pytest.fixture
def no_sleep(monkeypatch):
    monkeypatch.setattr(staging, "_SEGMENT", 64)  # two tables, and the next turn begins
    monkeypatch.setattr(staging, "_BUFFERS", 1)
    monkeypatch.setattr(staging, "sleep", lambda seconds: None)
    made = waiting.Waiter(sleep=lambda seconds: None)
    monkeypatch.setattr(waiting, "waiter_of_process", lambda *, into: made)


def each_chunk_through_a_buffer_of_its_own(patch):
    patch.setattr(staging, "_BUFFERS", 3)
    patch.setattr(staging, "BUFFER", 1)


def test_by_no_schedule_is_memory_used_while_a_copy_may_touch_it(monkeypatch, no_sleep):
    schedules(monkeypatch)
    each_chunk_through_a_buffer_of_its_own(monkeypatch)
    schedules(monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_call_that_fails_anywhere_leaves_no_work_on_memory(monkeypatch, no_sleep, gather, error):
    each_chunk_through_a_buffer_of_its_own(monkeypatch)
    line, failed = 0, True
    while failed:
        with recorded(random.Random(line), monkeypatch) as recorder:
            engine = Engine(recorder, recorder.random)
            engine.chunks([0, 1, 2], gather)
            fails = Interrupt(line, part="hexkv/kernels/gpu/staging.py", error=error)
            engine.chunks([0, 1, 2], gather, fails)
            failed, line = fails.where is not None, line + 1
            for way in (gather, not gather, gather):
                engine.chunks([2, 1, 0], way)
    assert line > 100


def begins_at_once(patch):
    def at_once(stream):
        streams._refuse_capture()
        return torch.cuda.stream(stream)

    patch.setattr(streams, "_after_the_callers", at_once)


def fences_no_stores(patch):
    patch.setattr(CudaKV, "fence", lambda self: torch.cuda.current_stream().wait_stream(self._into))


def fences_no_loads(patch):
    patch.setattr(CudaKV, "fence", lambda self: torch.cuda.current_stream().wait_stream(self._out))


def waits_for_nothing(patch):
    patch.setattr(waiting.Queued, "wait", lambda self, deadline: True)


def stores_with_an_event_of_the_caller(patch):
    """The event is recorded where the caller's work is, not behind the copy."""

    def outside(self, spans, layers=None):
        with streams._after_the_callers(self._out):
            self._window.gather(spans, layers)
        return transfer_on({torch.device("cuda", 0)})

    patch.setattr(streams._Streamed, "gather", outside)


def loads_with_an_event_of_the_caller(patch):
    def outside(self, spans, layers=None):
        with streams._after_the_callers(self._into):
            self._window.scatter(spans, layers)
        return transfer_on({torch.device("cuda", 0)})

    patch.setattr(streams._Streamed, "scatter", outside)


def keeps_no_block_of_a_late_copy(patch):
    patch.setattr(Copy, "shares", lambda self, owner: [])


def reaps_what_is_under_way(patch):
    from hexkv.core.memory import copying

    real = copying._done
    patch.setattr(copying, "_done", lambda t, deadline: real(t, deadline) or True)


def loads_beside_the_model_at_once(patch):
    def enter(self):
        self._entered.enter_context(torch.cuda.stream(torch.cuda.Stream()))

    patch.setattr(beside_the_model._Stream, "__enter__", enter)


def uses_a_buffer_before_its_last_copy_is_done(patch):
    real = DeviceStaging._ready
    free = SimpleNamespace(clock={}, query=lambda: True)

    def ready(*given):
        found = real(*given)
        for turn, buffer in enumerate(found):
            found[turn] = buffer._replace(free=free)
        return found

    patch.setattr(DeviceStaging, "_ready", ready)


def launches_on_the_buffer_of_a_neighbour(patch):
    each_chunk_through_a_buffer_of_its_own(patch)
    real = DeviceStaging._tables

    def turned(self, passages, buffers, *given):
        return real(self, passages, [*buffers[1:], buffers[0]], *given)

    patch.setattr(DeviceStaging, "_tables", turned)


def writes_tables_over_those_on_their_way(patch):
    patch.setattr(DeviceStaging, "used", lambda self, event: None)


def notes_tables_of_one_way_alone(patch):
    """A copy of the other way ends later than its launch, which reads the table."""
    real = DeviceStaging.pass_through

    def noted(self, *given, into):
        if into:
            vars(self)["used"] = lambda event: None
        try:
            return real(self, *given, into=into)
        finally:
            vars(self).pop("used", None)

    patch.setattr(DeviceStaging, "pass_through", noted)


def sends_a_table_once_and_waits_for_it_on_one_stream(patch):
    real = Sent.on

    def on(self, staging, stream):
        found = real(self, staging, stream)
        self._event = None
        return found

    patch.setattr(Sent, "on", on)


class Hasty:
    """A stream whose work waits for no other one's."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def wait_event(self, event):
        pass


def launches_before_the_copy_is_there(patch):
    patch.setattr(Queue, "current", lambda self: Hasty(torch.cuda.current_stream()))


def copies_before_the_launch_is_done(patch):
    patch.setattr(Queue, "stream", lambda self: Hasty(torch.cuda.Stream()))


def captures_what_is_copied(patch):
    patch.setattr(streams, "_refuse_capture", lambda: None)


def copies_into_pages_that_are_in_use(patch):
    real = devices.behind
    patch.setattr(devices, "behind", lambda device, events: real(device, []))


def says_that_layers_are_there_too_early(patch):
    real = devices.behind

    @contextmanager
    def apart(device, events):
        with real(device, events):
            yield torch.cuda.Stream()

    patch.setattr(devices, "behind", apart)


def releases_what_is_being_copied(patch):
    patch.setattr(devices, "_finish", lambda transfer: None)


MUTANTS = [
    uses_a_buffer_before_its_last_copy_is_done,
    launches_on_the_buffer_of_a_neighbour,
    writes_tables_over_those_on_their_way,
    notes_tables_of_one_way_alone,
    sends_a_table_once_and_waits_for_it_on_one_stream,
    launches_before_the_copy_is_there,
    copies_before_the_launch_is_done,
    captures_what_is_copied,
    copies_into_pages_that_are_in_use,
    says_that_layers_are_there_too_early,
    releases_what_is_being_copied,
    begins_at_once,
    fences_no_stores,
    fences_no_loads,
    waits_for_nothing,
    stores_with_an_event_of_the_caller,
    loads_with_an_event_of_the_caller,
    keeps_no_block_of_a_late_copy,
    reaps_what_is_under_way,
    loads_beside_the_model_at_once,
]


@pytest.mark.thorough
def test_each_wait_that_is_left_out_is_seen(monkeypatch, no_sleep):
    unseen = []
    for mutant in MUTANTS:
        with monkeypatch.context() as patch:
            mutant(patch)
            try:
                schedules(monkeypatch)
            except (Race, Captured):
                continue
            unseen.append(mutant.__name__)
    assert unseen == []
