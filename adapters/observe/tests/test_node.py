"""What a node's tiers hold is published by the node: its engines tell it the tokens."""

from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.node.client.telling import pack_named, read_named
from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import SHA256
from hexkv.core.keys.prompts import ChunkHasher
from hexkv.peers.serving.prompts import CheckedPrompts
from hexkv.ports import ConfigError
from nodes import NAMESPACE, NodeProcess
from operating.routers import Router, said
from processes import held_port, until

PROMPT = list(range(100, 100 + 6 * TOKENS))
OTHER = [*PROMPT[: 2 * TOKENS], *range(900, 900 + 2 * TOKENS)]


def store(engine, tokens):
    return engine.store(tokens, HeapKV(LAYOUT, len(tokens)).compute(tokens))


@pytest.mark.thorough
def test_routers_agree_with_what_engines_find_in_their_node_also_after_an_upgrade(tmp_path):
    ports = {name: held_port() for name in ("address", "events", "replay")}
    places = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    observe = places | {"events_block": TOKENS // 2, "events_beat": 0.05}
    with (
        NodeProcess(tmp_path, slots=64, memory=32, observe=observe) as node,
        node.engine() as one,
        node.engine() as two,
        Router(ports["events"], ports["replay"], TOKENS // 2) as router,
    ):
        store(one, PROMPT)
        store(two, OTHER)
        for tokens in (PROMPT, OTHER):
            router.follow(lambda tokens=tokens: router.match(tokens) == (len(tokens),) * 2)
            assert two.lookup(tokens).hit_tokens == len(tokens)
        one.clear(PROMPT)
        router.follow(lambda: router.match(OTHER) == (0, 0))
        assert two.lookup(OTHER).hit_tokens == 0
        assert urlopen(f"http://{places['address']}/readyz", timeout=60).status == 200
        node.take_over()
        until(lambda: said(ports["address"]))
        with node.engine() as late:
            store(late, PROMPT)
            router.follow(lambda: router.match(PROMPT) == (len(PROMPT),) * 2)


def test_a_node_without_events_is_told_once_at_most_and_engines_publish_nothing(tmp_path):
    with NodeProcess(tmp_path) as node, node.engine() as engine:
        store(engine, PROMPT)
        teller = engine._chunks._teller
        until(lambda: engine.lookup(OTHER) is not None and not teller._wanted)
        with pytest.raises(ConfigError, match=r"observe\.events.*node's to publish"):
            node.engine(observe={"events": f"127.0.0.1:{held_port()}"})


class Sink:
    def __init__(self):
        self.told = []

    def named(self, prompt):
        self.told.append(prompt)


def named(tokens, first=0):
    """A prompt of an engine from one of its chunks on."""
    sink = Sink()
    ChunkHasher(PrefixChunker(TOKENS), SHA256, sink=sink).name(tokens, NAMESPACE)
    (prompt,) = sink.told
    return read_named(pack_named(prompt, first, len(prompt.keys)))


def test_a_node_believes_keys_of_just_these_tokens():
    sink = Sink()
    checked = CheckedPrompts(sink)
    whole, rest = named(PROMPT), named(PROMPT, 2)
    assert (whole.after, rest.after) == (None, whole.keys[1])
    assert checked.named(whole)
    assert checked.named(rest)
    assert [prompt.keys for prompt in sink.told] == [whole.keys, rest.keys]
    other = named(OTHER)
    lies = [
        whole._replace(keys=[*whole.keys[:-1], other.keys[-1]]),
        rest._replace(after=None),
        rest._replace(after=other.keys[2]),
        whole._replace(tokens=memoryview(bytes(len(whole.tokens)))),
        whole._replace(identity="{}"),
        whole._replace(ends=tuple(end - 1 for end in whole.ends)),
    ]
    assert not any(map(checked.named, lies))
    assert len(sink.told) == 2


@given(st.binary(max_size=300))
def test_no_bytes_are_taken_for_tokens_that_are_none(body):
    whole = pack_named(named(PROMPT), 0, 6)
    for wrong in (body, whole[: len(body)], whole + body[:1] + b".", body + whole):
        try:
            prompt = read_named(wrong)
        except BadMessage:
            continue
        assert len(prompt.tokens) == 4 * prompt.ends[-1]
        assert len(prompt.keys) == len(prompt.ends)


@pytest.mark.thorough
def test_an_engine_whose_node_is_gone_is_not_open_until_it_is_there_again(tmp_path):
    shown = held_port()
    page = f"http://127.0.0.1:{shown}"

    def opened():
        text = urlopen(f"{page}/metrics", timeout=60).read().decode()
        (line,) = [line for line in text.splitlines() if line.startswith("hexkv_open")]
        return int(line.split()[-1])

    with (
        NodeProcess(tmp_path, disk=False) as node,
        node.engine(observe={"address": f"127.0.0.1:{shown}"}) as engine,
    ):
        store(engine, PROMPT)
        assert opened() == 1
        node.kill()
        until(lambda: opened() == 0)
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{page}/readyz", timeout=60)
        assert refused.value.code == 503
        assert refused.value.read() == b"it is without a node\n"
        refused.value.close()
        node.start()
        until(lambda: opened() == 1)
