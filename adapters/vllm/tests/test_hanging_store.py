"""A store that hangs holds up the requests that ask for it, and nobody else."""

from contextlib import ExitStack
from threading import Event
from types import SimpleNamespace

from dict_store import DictStore
from hexkv.adapters.vllm.configuration.configuration import configure
from hexkv.adapters.vllm.lookup.channel import (
    ChannelClient,
    ChannelServer,
    meeting_place,
    socket_path,
)
from hexkv.adapters.vllm.messages import Scope
from hexkv.adapters.vllm.scheduler.requests import Allowed, Scheduled, Shape
from hexkv.adapters.vllm.scheduler.scheduler_connector import SchedulerConnector
from hexkv.adapters.vllm.worker.serving import LookupServer, Scopes
from hexkv.contracts.doubles import ManualClock
from hexkv.kernels.blocks import opaque_layout
from hexkv.plugins.composition.compose import build
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.discovery.registry import Origin
from hexkv.plugins.spec import CONTRACT, AdapterSpec
from hexkv.ports import Namespace
from processes import PATIENCE, until

BLOCK, CHUNK = 16, 32


class Hanging(DictStore):
    """A service that takes questions, and answers none before it may go on."""

    def __init__(self):
        super().__init__({})
        self.asked, self.goes_on = Event(), Event()

    def contains(self, keys, deadline):
        self.asked.set()
        assert self.goes_on.wait(PATIENCE)
        return super().contains(keys, deadline)


def request(name):
    tokens = list(range(100))
    return SimpleNamespace(
        request_id=name,
        all_token_ids=tokens,
        num_prompt_tokens=len(tokens),
        num_tokens=len(tokens),
        num_computed_tokens=0,
    )


def test_while_a_store_hangs_the_scheduler_goes_on_and_no_request_waits_for_ever(tmp_path):
    """Configured as somebody does who says nothing about lookups."""
    store, clock, registry = Hanging(), ManualClock(), discover()
    spec = AdapterSpec(
        "store", "far", "somewhere else", lambda settings, context: store, contract=CONTRACT
    )
    registry.offer(Origin("tests", ""), [spec])
    extra = {"tiers": [{"store": "memory"}, {"store": "far"}], "chunk": {"size": CHUNK}}
    extra |= {"deadlines": {"lookup": PATIENCE}, "lookup_seconds": PATIENCE}
    configured = configure(extra, registry, block_tokens=BLOCK, environ={})
    namespace = Namespace("toy", opaque_layout(CHUNK, [1024]))
    with ExitStack() as opened:
        engine = build(configured.engine, namespace, registry=registry)
        opened.callback(engine.close)
        path = socket_path(meeting_place(str(tmp_path), "engine", make=True), 0)
        listener = ChannelServer(path, LookupServer(engine, Scopes(namespace)))
        opened.callback(listener.close)
        opened.callback(store.goes_on.set)
        shape = Shape(CHUNK, BLOCK)
        plan = SchedulerConnector(configured.connector, shape, [ChannelClient(path)], clock.now)
        opened.callback(plan.close)

        plan.arrived(request("waits"), Scope(), Allowed(True, True))
        assert store.asked.wait(PATIENCE)
        assert plan.matched("waits", 0) == (None, False)
        plan.arrived(request("computes"), Scope(), Allowed(False, True))
        assert plan.matched("computes", 0) == (0, False)
        plan.allocated("computes", range(1, 8), 0)
        step = plan.plan([Scheduled("computes", 0, 100, range(1, 8), True)])
        assert [save.end for save in step.saves] == [96]
        assert plan.matched("waits", 0) == (None, False)

        plan.arrived(request("gives up"), Scope(), Allowed(True, True))
        clock.advance(PATIENCE)
        assert plan.matched("gives up", 0) == (0, False)
        plan.arrived(request("is served"), Scope(), Allowed(True, True))
        store.goes_on.set()
        until(lambda: plan.matched("is served", 0) == (0, False))
