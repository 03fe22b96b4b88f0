"""The scheduler's half of the connector, called as vLLM calls it, over ranks of the test's."""

from types import SimpleNamespace

from hexkv.adapters.vllm.configuration.settings import ConnectorSettings
from hexkv.adapters.vllm.messages import Scope
from hexkv.adapters.vllm.scheduler.requests import Allowed, Scheduled, Shape
from hexkv.adapters.vllm.scheduler.scheduler_connector import SchedulerConnector

BLOCK, CHUNK = 16, 32


class Rank:
    """Answers as it is told to, and remembers what it was asked."""

    def __init__(self, *, hit=0, tiers=None, late=False, there=True, follows=False):
        self.follows = follows
        self.hit, self.tiers, self.late, self.there = hit, tiers or {"memory": hit}, late, there
        self.asked, self.tokens = [], b""
        self.said, self.cleared, self._clears = {}, {"chunks": 0, "left": {}}, set()

    def ask(self, op, tokens=b"", *, wanted=True, **said):
        if not self.there:
            return 0
        self.asked.append((op, said.get("id")))
        self.tokens = tokens or self.tokens
        if op == "clear":
            self.said = said
            self._clears.add(len(self.asked))
        return len(self.asked)

    def take(self, number, seconds=0.0):
        if number in self._clears:
            return self.cleared
        if self.follows:
            return {"follows": True}
        return None if self.late else {"hit": self.hit, "tiers": self.tiers}

    def drop(self, number):
        pass

    def close(self):
        pass

    def count(self, op):
        return sum(name == op for name, _ in self.asked)


class Clock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


def request(tokens=100, name="r", generated=0):
    return SimpleNamespace(
        request_id=name,
        all_token_ids=list(range(tokens + generated)),
        num_prompt_tokens=tokens,
        num_tokens=tokens + generated,
        num_computed_tokens=0,
    )


def half(*ranks, later=False, checked_later=False, clock=None, tail=0, weights=None, **settings):
    loading = "async" if later else "sync"
    return SchedulerConnector(
        ConnectorSettings(loading=loading, **settings),
        Shape(CHUNK, BLOCK, checked_later, tail=tail),
        ranks,
        clock or Clock(),
        weights,
    )


def arrive(plan, made, *, reads=True, writes=True, scope=None, **over):
    plan.arrived(made, scope or Scope(), Allowed(reads, writes, **over))
    return made.request_id


def blocks(tokens):
    return list(range(1, 1 + -(-tokens // BLOCK)))


def step(plan, name, computed, scheduled, ids=(), replaces=True):
    return plan.plan([Scheduled(name, computed, scheduled, ids, replaces)])
