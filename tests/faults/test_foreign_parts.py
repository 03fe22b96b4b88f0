"""What the engine makes of serdes, policies, transfers and checksums that answer with nonsense."""

import pytest

from dict_store import ScanningStore
from hexkv.contracts.kit.cases import each
from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.core.memory.copying import Copier
from hexkv.core.tiers.index.index import TierIndex
from hexkv.core.tiers.rules import TierRules
from hexkv.core.tiers.tier import TierPlan
from hexkv.ports import (
    PAGE,
    ConfigError,
    Deadline,
    FrameHeader,
    HashFunction,
    StoreError,
)
from media.plain_serde import PlainSerde
from prompts import PROMPT, computed, empty
from rigging import CHUNK, FRAME, LAYOUT, tier


class OddSerde(PlainSerde):
    """Answers one question with something else."""

    def __init__(self, method, answer):
        super().__init__()
        self.method, self.answer = method, answer

    def __getattribute__(self, name):
        mine = object.__getattribute__
        if name.startswith("_") or name != mine(self, "__dict__").get("method"):
            return mine(self, name)
        return lambda *given: (mine(self, name)(*given), mine(self, "answer"))[1]


SERDE_ANSWERS = {
    "bound": [None, -1, True, "x", 1 << 60],
    "encode": [None, -1, True, 1 << 40, b""],
    "decode": [True, 7, b""],
    "index_bytes": [None, -1, True, 1 << 60],
    "layer_parts": [None, [], [(0, 1)], [None] * 3, [(0.0, 1.0)] * 3, [(5, 1)] * 3, "abc"],
    "decode_layer": [True, 7],
}


@each(("method", "answer"), [(m, a) for m, many in SERDE_ANSWERS.items() for a in many])
def test_what_a_serde_answers_is_checked_and_costs_no_kv(rig, method, answer):
    place = tier("abroad", ScanningStore({}), serdes=("odd",))
    r = rig([place], serdes={"odd": OddSerde(method, answer)})
    report = r.engine.store(PROMPT, computed())
    assert report.stored_tokens + report.dropped_tokens == 160
    window = empty()
    got = r.engine.retrieve(PROMPT, window)
    assert window.agrees(computed(), got.hit_tokens)
    window = empty()
    with r.engine.retrieve_layers(PROMPT, window) as layers:
        assert list(layers) == list(range(LAYOUT.layers))
    assert window.agrees(computed(), layers.result().hit_tokens)
    assert r.at_rest()


@each("name", [None, 7, "", "x" * 33, "naïve", b"plain"])
def test_a_serde_without_a_name_for_headers_is_refused_when_the_engine_is_built(rig, name):
    serde = PlainSerde()
    serde.name = name
    with pytest.raises(ConfigError):
        rig([tier("abroad", ScanningStore({}))], serdes={"odd": serde})


class Order:
    """A policy that remembers what is there, and names *wrong* when it is asked."""

    def __init__(self, wrong):
        self.wrong = wrong
        self.there = {}

    def admit(self, keys, after):
        self.there.update(dict.fromkeys(keys))
        if self.wrong == "admit":
            raise RuntimeError("admit")

    def touch(self, keys):
        if self.wrong == "touch":
            raise RuntimeError("touch")

    def drop(self, key, *, evicted):
        if self.wrong == "drop":
            raise RuntimeError("drop")
        del self.there[key]

    def victims(self):
        kinds = {
            "strangers": [b"k" * 48],
            "no keys": [7],
            "lists": [[]],
            "twice": [*self.there, *self.there],
            "for ever": iter(lambda: next(iter(self.there)), None),
            "none": [],
            "nothing": None,
        }
        return iter(kinds.get(self.wrong, list(self.there)))


@each(
    "wrong",
    [
        "admit",
        "touch",
        "drop",
        "strangers",
        "no keys",
        "lists",
        "twice",
        "for ever",
        "none",
        "nothing",
        "",
    ],
)
def test_whatever_a_policy_says_the_tier_keeps_its_budget_and_goes_on(rig, wrong, caplog):
    caplog.clear()
    policy = Order(wrong)
    index = TierIndex(policy, 4 * FRAME)
    store = ScanningStore({})
    r = rig([TierPlan("small", store, index, TierRules())])
    for turn in range(4):
        tokens = [turn] * len(PROMPT)
        r.engine.store(tokens, computed(tokens))
        assert index.used == sum(map(len, store.medium.values())) <= 4 * FRAME
        window = empty(tokens)
        got = r.engine.retrieve(tokens, window)
        assert window.agrees(computed(tokens), got.hit_tokens)
        assert got.hit_tokens == 64
    assert ("policy Order" in caplog.text) == (wrong != "")


class Wanting:
    """A device whose transfers say *answer* when they are waited for."""

    def __init__(self, answer):
        self.answer = answer

    def gather(self, spans, layers=None):
        return self

    def wait(self, deadline):
        return self.answer

    def scatter(self, spans, layers=None):
        return self.answer


@each("answer", [None, 1, "done", object(), [True]])
def test_a_copy_is_done_only_if_its_transfer_says_so(rig, answer):
    r, device = rig([tier("abroad", ScanningStore({}))]), Wanting(answer)
    copier, now = Copier(None), Deadline(r.clock, 0.0)
    assert not copier.copy(device, [], [], "", now, gather=True)
    assert not copier.copy(device, [], [], "", now, gather=False)
    assert len(copier.begun) == 1, "the copy that answers this may go on"


@each("digest", [None, "text", 7, bytearray(4), [1]])
def test_a_checksum_that_gives_no_bytes_is_refused_and_later_a_failure(digest):
    with pytest.raises(ConfigError):
        FrameCodec(HashFunction("odd", lambda data: digest))
    turned = [False]
    odd = HashFunction("odd", lambda data: digest if turned[0] else CRC32.digest(data))
    codec = FrameCodec(odd)
    turned[0] = True
    frame = memoryview(bytearray(FRAME))
    header = FrameHeader(b"k" * 48, "{}", CHUNK, "raw", FRAME - PAGE, FRAME - PAGE, 1.0)
    with pytest.raises(StoreError, match="odd"):
        codec.seal(frame, header)
