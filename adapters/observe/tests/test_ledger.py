"""Whatever comes and goes, a router knows what is held, as far as its tokens are known."""

import json
from array import array

from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.observe.feed import Feed
from hexkv.adapters.observe.ledger import AnnouncedChunks, Medium, NewTokens
from hexkv.contracts.doubles import chunk_key
from hexkv.ports import CacheEvent, Change, NamedPrompt
from operating.routers import Blocks

BLOCK, CHUNK = 2, 4
IDENTITY = {"model": "toy", "salt": "", "parallel": [0, 1], "lora": ""}


def named(tokens, **identity):
    """A prompt, whose last chunk may be shorter; equal beginnings have equal keys."""
    ends = [*range(CHUNK, len(tokens) + 1, CHUNK)]
    if len(tokens) % CHUNK:
        ends.append(len(tokens))
    keys = [chunk_key(repr((identity, tokens[:end]))) for end in ends]
    packed = memoryview(array("I", tokens)).cast("B")
    return NamedPrompt(json.dumps(IDENTITY | identity), keys, ends, packed)


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
STEPS = st.lists(
    st.tuples(PROMPTS, st.sampled_from(["name", "memory", "disk", "both", "leave", "take"])),
    max_size=40,
)


@given(STEPS, st.sampled_from([3000, 1 << 20]))
def test_a_router_agrees_with_what_is_held_and_named(steps, limit):
    feed = Feed({"memory": True, "disk": False}, block=BLOCK, model="", limit=limit)
    router, replayed = Blocks(BLOCK), Blocks(BLOCK)
    held = {"memory": set(), "disk": set()}
    prompts = []
    for tokens, step in steps:
        prompt = named(tokens)
        prompts.append((tokens, prompt))
        if step == "name":
            feed.named(prompt)
        elif step == "take":
            for event in feed.take():
                router.apply(event)
        else:
            tiers = {"both": ["memory", "disk"], "leave": ["memory", "disk"]}.get(step, [step])
            # Of a prompt that leaves, only the end does, as under a policy.
            keys = prompt.keys[-1:] if step == "leave" else prompt.keys
            change = Change.REMOVED if step == "leave" else Change.STORED
            for tier in tiers:
                feed.emit(CacheEvent(change, tier, keys))
                (held[tier].difference_update if step == "leave" else held[tier].update)(keys)
    for event in feed.take():
        router.apply(event)
    for event in feed.ledger.snapshot():
        replayed.apply(event)
    known = feed.ledger.knows
    assert feed.ledger.bytes <= limit or limit == 3000
    for tokens, _ in prompts:
        expected, reached = [], 0
        for tiers in (["memory"], ["memory", "disk"]):
            there = set().union(*(held[tier] for tier in tiers))
            while reached + BLOCK <= len(tokens) and any(
                key in there and known([key])
                for other, prompt in prompts
                for key, start, end in zip(
                    prompt.keys, [0, *prompt.ends], prompt.ends, strict=False
                )
                if start < reached + BLOCK <= end
                and other[: reached + BLOCK] == tokens[: reached + BLOCK]
            ):
                reached += BLOCK
            expected.append(reached)
        assert router.match(tokens) == replayed.match(tokens) == tuple(expected)
    feed.close()


def test_what_routers_have_no_word_for_is_counted_instead():
    for identity, why in (
        ({"salt": "a digest"}, "salt"),
        ({"parallel": [1, 2]}, "rank"),
        ({"model": "other"}, "model"),
    ):
        ledger, new = (
            AnnouncedChunks([Medium("CPU", ())], block=BLOCK, model="toy", limit=1 << 20),
            known(),
        )
        assert not list(ledger.name(new._replace(identity=json.dumps(IDENTITY | identity))))
        assert ledger.passed_over == {why: 1}


def test_blocks_of_a_lora_adapter_are_others():
    new = known()
    medium = Medium("CPU", set(new.keys))
    found = []
    for lora in ("", "adapter"):
        ledger = AnnouncedChunks([medium], block=BLOCK, model="", limit=1 << 20)
        (event,) = ledger.name(new._replace(identity=json.dumps(IDENTITY | {"lora": lora})))
        assert event["lora_name"] == (lora or None)
        found.append(event)
    plain, other = found
    assert plain["token_ids"] == other["token_ids"]
    assert not set(plain["block_hashes"]) & set(other["block_hashes"])


def known():
    prompt = named([1, 2, 3, 4])
    return NewTokens(prompt.identity, prompt.keys, prompt.ends, bytes(prompt.tokens), None)


def test_a_block_that_does_not_divide_chunks_is_announced_nowhere():
    ledger = AnnouncedChunks([Medium("CPU", ())], block=3, model="", limit=1 << 20)
    prompt = named([1, 2, 3, 4, 5, 6, 7, 8])
    new = NewTokens(prompt.identity, prompt.keys, prompt.ends, bytes(prompt.tokens), None)
    assert not list(ledger.name(new))
    assert ledger.passed_over["block"] == 2
