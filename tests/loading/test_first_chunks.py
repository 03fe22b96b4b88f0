"""The copy of a long prompt's first chunks is under way while the others are named and found."""

import random
from array import array
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from dict_store import ScanningStore
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import case, each
from hexkv.core.engine.engine import Deadlines
from hexkv.core.keys import hashing
from hexkv.core.keys.hashing import SHA256
from hexkv.core.memory.pipelining import Pipelining
from hexkv.ports import Deadline, HashFunction, InvalidRequest, InvalidTokens
from prompts import FULL, PROMPT, computed, memory
from rigging import CHUNK, LAYOUT, tier

CHUNKS, FIRST = FULL // CHUNK, 2
RIGHT = computed()


class Late(HeapKV):
    """Copies as a wait begins, unless that fails; notes how much was hashed by each call."""

    def __init__(self, hashed=(), failing=None, refuses=None):
        super().__init__(LAYOUT, len(PROMPT))
        self.hashed, self.failing, self.refuses = hashed, failing, refuses
        self.queued, self.ended, self.seen = [], [], []

    def scatter(self, spans, layers=None):
        if self.refuses is not None:
            raise self.refuses
        self.seen.append(len(self.hashed))
        self.queued.append(spans)
        return SimpleNamespace(wait=partial(self.finish, spans))

    def finish(self, spans, deadline):
        self.ended.append(spans)
        super().scatter(spans)
        if self.failing is not None and spans[0].start >= self.failing:
            raise OSError
        return True


class Long:
    """An engine that copies two chunks a step; *then* is called with the number of each hash."""

    def __init__(self, rig, *, slow=False):
        self.hashed, self.then = [], None
        self.medium = {}
        tiers = [memory(), *([tier("slow", ScanningStore(self.medium))] if slow else [])]
        limits = Deadlines(lookup=1.0, retrieve=1.0, store=1.0)
        digest = HashFunction("sha256", self.digest)
        self.rig = rig(tiers, algorithm=digest, deadlines=limits)
        self.engine = self.rig.engine
        self.engine._requests.pace.fixed = Pipelining(FIRST, 8, FIRST)
        self.begins(True)
        self.engine.store(PROMPT, RIGHT)
        assert self.engine.flush()
        self.keys = self.engine.chunk_keys(PROMPT)

    def begins(self, first):
        """Whether the first chunks are copied first."""
        self.engine._first._least = FIRST
        self.engine._first.longer = FIRST * CHUNK if first else 1 << 40

    def digest(self, data):
        self.hashed.append(data)
        if self.then is not None:
            self.then(len(self.hashed))
        return SHA256.digest(data)

    def load(self, device, tokens=PROMPT, **options):
        self.engine._naming._namer._again.clear()  # a prompt that was named lately is not hashed
        self.hashed.clear()
        got = self.engine.retrieve(tokens, device, **options)
        assert device.agrees(RIGHT, got.hit_tokens) or options.get("skip")
        assert self.rest(device)
        return got

    def rest(self, device):
        """Whether no copy goes on, and nothing is leased."""
        swept = self.rig.pool.swept
        return device.ended == device.queued and self.rig.at_rest() and not swept


def test_the_first_copy_is_queued_before_the_rest_is_hashed(rig):
    long = Long(rig)
    for tokens in (PROMPT, tuple(PROMPT), array("I", PROMPT), np.array(PROMPT)):
        with case(type(tokens)):
            device = Late(long.hashed)
            assert long.load(device, tokens).tiers == {"memory": FULL}
            assert device.seen == [FIRST, *[FIRST + CHUNKS] * 4], "hashed once more, with the rest"
            assert [len(spans) for spans in device.queued] == [FIRST] * 5
    device = Late(long.hashed)
    assert long.load(device, skip=3 * CHUNK + 1).loaded_tokens == 7 * CHUNK
    assert device.seen[0] == 3 + FIRST
    long.engine.prefetch("in memory", PROMPT)
    assert long.load(device := Late(long.hashed), lookup_id="in memory").hit_tokens == FULL
    assert device.seen[0] == FIRST, "such a prefetch holds nothing"
    long.engine.clear([*PROMPT], tiers=["memory"])
    assert long.load(device := Late(long.hashed)).hit_tokens == 0
    assert device.queued == []


def test_what_the_first_chunks_cannot_be_is_as_it_was(rig):
    long = Long(rig, slow=True)
    spoilt = [*PROMPT[:-1], -1]
    short = Late()
    short.tokens = len(PROMPT) - 1

    def outcome(first, **options):
        long.begins(first)
        device = options.pop("device", None) or Late(long.hashed, options.pop("failing", None))
        try:
            got = long.load(device, options.pop("tokens", PROMPT), **options)
        except InvalidRequest as error:
            got = type(error), str(error)
        assert long.rest(device)
        return got if isinstance(got, tuple) else (got.hit_tokens, got.tiers, got.misses)

    for given in (
        {"tokens": spoilt},
        {"tokens": np.zeros(len(PROMPT), "M8[s]")},
        {"device": short},
        {"skip": -1},
        {"skip": 9 * CHUNK},
        {"timeout": -1.0},
        {"device": Late(refuses=InvalidRequest("no such slot"))},
        {"device": Late(refuses=OSError("gone"))},
        *({"failing": number * CHUNK} for number in (0, 2, 5)),
    ):
        with case(given):
            assert outcome(True, **given) == outcome(False, **given)
    for left in (range(2, 10), range(1), range(1, 2), range(4, 5)):
        long.engine._chunks.stack.forget(
            [long.keys[i] for i in left], [long.rig.tiers["memory"]], soon(long)
        )
        with case(left):
            assert outcome(True)[0] == FULL
    long.engine.admin.rules("memory", reads=False)
    assert outcome(True) == outcome(False) == (FULL, {"slow": FULL}, {})
    assert long.engine.prefetch("held", PROMPT) == FULL
    long.engine.admin.rules("memory", reads=True)
    long.begins(True)
    assert long.load(device := Late(long.hashed), lookup_id="held").tiers == {"slow": FULL}
    assert device.seen[0] == CHUNKS, "what a prefetch holds comes first"
    for change, error, why in (
        (lambda tokens: tokens.__setitem__(0, tokens[0] ^ 1), InvalidTokens, "changed"),
        (lambda tokens: tokens.append(1), InvalidRequest, "addresses"),
    ):
        with case(why):
            tokens = [*PROMPT]
            # The next chunk that is hashed is the first once more.
            long.then = lambda number, change=change, tokens=tokens: (
                change(tokens) if number == FIRST else None
            )
            with pytest.raises(error, match=why):
                long.load(device := Late(), tokens)
            assert device.queued
            assert long.rest(device)
    long.then = None
    for name in long.rig.tiers:
        long.engine._chunks.stack.detach(name, soon(long))
    assert outcome(True) == outcome(False)


def soon(long):
    return Deadline.after(long.rig.clock, 60.0)


@each("slow", [False, True])
def test_whatever_happens_beside_the_first_copy_kv_is_right_and_all_is_released(
    rig, slow, monkeypatch
):
    monkeypatch.setattr(hashing, "_PIECE", 3)  # chunks between two looks at the clock
    long, dice = Long(rig, slow=slow), random.Random(0)
    chunks, clock = long.engine._chunks, long.rig.clock

    def fail(error):
        raise error

    acts = {
        "evict": lambda: chunks.stack.forget(
            dice.sample(long.keys, dice.randrange(1, 11)),
            [long.rig.tiers["memory"]],
            soon(long),
        ),
        "forget": lambda: chunks.forget(dice.sample(long.keys, 3), soon(long)),
        "clear": lambda: chunks.clear(None, None, soon(long)),
        "late": lambda: clock.advance(2.0),
        "interrupt": lambda: fail(KeyboardInterrupt()),
        "broken": lambda: fail(OSError()),
        "interrupt later": lambda: setattr(chunks, "touch", lambda keys: fail(KeyboardInterrupt())),
        "nothing": lambda: None,
    }
    ended = set()
    for number in range(140):
        name = dice.choice([*acts])
        at, failing = dice.randrange(1, 13), dice.choice([None, None, None, 0, 4 * CHUNK])

        def then(count, name=name, at=at):
            if count == at:
                acts[name]()

        with case((number, name, at, failing)):
            long.then = then
            device = Late(long.hashed, failing)
            try:
                got = long.load(device)
                ended.add(("hit", got.hit_tokens == FULL))
            except (KeyboardInterrupt, OSError) as error:
                ended.add(type(error))
            long.then, chunks.touch = None, chunks.stack.touch
            assert long.rest(device)
            if number % 4 == 0:
                long.engine.store(PROMPT, RIGHT)
                assert long.engine.flush()
    assert ended == {("hit", True), ("hit", False), KeyboardInterrupt, OSError}
