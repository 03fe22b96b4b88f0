"""Chunks in a node's memory are taken along, and brought into it, by archives."""

import json
import os

import pytest

from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.__main__ import main
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import PAGE, DType, KVLayout, Namespace
from nodes import FRAME, NAMESPACE, Node

WORDS = list(range(6 * TOKENS))
OTHER = Namespace("contract", LAYOUT, salt="somebody")


@pytest.fixture
def node(tmp_path):
    with Node(tmp_path, disk=False) as node:
        yield node
        node.at_rest()


@pytest.fixture
def hexkv(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HEXKV_CONFIG", raising=False)

    def call(command, archive, config, *words):
        file = tmp_path / "hexkv.yaml"
        file.write_text(json.dumps(config))
        code = main([command, str(archive), "--config", str(file), "--json", *words])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return call


def over(node):
    return {"node": str(node.path), "chunk": {"size": TOKENS}}


def on_disk(tmp_path, **tier):
    disk = {"store": "disk", "settings": {"root": str(tmp_path / "elsewhere")}} | tier
    return {"chunk": {"size": TOKENS}, "pool": {"bytes": "4MiB"}, "tiers": [disk]}


def computed(words=WORDS):
    return HeapKV(LAYOUT, len(words)).compute(words)


def right(engine, words=WORDS):
    """How many tokens are loaded, and are the right ones."""
    loaded = HeapKV(LAYOUT, len(words))
    got = engine.retrieve(words, loaded).hit_tokens
    assert loaded.agrees(computed(words), got)
    return got


def test_what_a_node_has_in_memory_is_taken_along_and_brought_into_another(node, hexkv, tmp_path):
    with node.engine() as engine, node.engine(OTHER) as other:
        engine.store(WORDS, computed())
        other.store(WORDS[: 2 * TOKENS], computed(WORDS[: 2 * TOKENS]))
    archive = tmp_path / "archive"
    code, told, _ = hexkv("export", archive, over(node))
    assert (code, told["frames"], len(told["namespaces"])) == (0, 8, 2)
    config = on_disk(tmp_path)
    assert hexkv("import", archive, config)[0] == 0
    with build(load(environ={}, overrides=config), NAMESPACE) as engine:
        assert right(engine) == 6 * TOKENS
    with Node(tmp_path / "second", disk=False) as second:
        code, told, _ = hexkv("import", archive, over(second))
        assert (code, told["frames"]) == (0, 8)
        assert hexkv("import", archive, over(second))[1]["present"] == 8
        with second.engine() as engine:
            assert right(engine) == 6 * TOKENS
        second.at_rest()


def test_encoded_frames_are_decoded_on_their_way_into_a_node(node, hexkv, tmp_path):
    pytest.importorskip("hexkv.adapters.lossless")
    config = on_disk(tmp_path, serde="zstd")
    layout = KVLayout.attention(DType.FLOAT16, layers=4, heads=4, key_width=64)
    large = Namespace("large", layout)
    words = [1] * TOKENS
    kv = HeapKV(layout, TOKENS)  # zeros, which get smaller
    with build(load(environ={}, overrides=config), large) as engine:
        engine.store(words, kv)
    archive = tmp_path / "archive"
    assert hexkv("export", archive, config)[0] == 0
    assert archive.stat().st_size < 2 * PAGE + layout.chunk_bytes(TOKENS)
    assert hexkv("import", archive, over(node))[0] == 0
    loaded = HeapKV(layout, TOKENS).compute(words)
    with node.engine(large) as engine:
        assert engine.retrieve(words, loaded).hit_tokens == TOKENS
    assert loaded.agrees(kv, TOKENS)


def test_damaged_frames_do_not_come_into_a_node(node, hexkv, tmp_path):
    with node.engine() as engine:
        engine.store(WORDS, computed())
    archive = tmp_path / "archive"
    assert hexkv("export", archive, over(node))[0] == 0
    data = bytearray(archive.read_bytes())
    data[PAGE + FRAME + 5000] ^= 1
    archive.write_bytes(data)
    with Node(tmp_path / "second", disk=False) as second:
        code, told, _ = hexkv("import", archive, over(second))
        assert (code, told["frames"], told["refused"]) == (1, 5, {"corrupt": 1})
        second.at_rest()


def test_only_the_nodes_own_user_and_root_may_list_what_others_stored(
    node, hexkv, tmp_path, monkeypatch
):
    monkeypatch.setattr("hexkv.adapters.node.server.server.os.geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr("hexkv.adapters.net.server.client_check.Allowed.lets_in", lambda *_: True)
    monkeypatch.setattr("hexkv.adapters.net.stream.peer_of", lambda _: (1, os.getuid() + 2, 1))
    code, _, err = hexkv("export", tmp_path / "archive", over(node))
    assert code == 2
    assert "only the node's own user" in err


def test_a_node_that_does_not_answer_is_said_in_one_line(hexkv, tmp_path):
    config = {"node": str(tmp_path / "nobody.sock")}
    code, _, err = hexkv("export", tmp_path / "archive", config)
    assert (code, err.count("\n")) == (1, 1)
    assert "does not answer" in err
    assert hexkv("export", tmp_path / "a", config, "--tier", "disk")[2].startswith("error: --tier")
