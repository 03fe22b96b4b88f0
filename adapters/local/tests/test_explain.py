"""``hexkv explain``: how much of a prompt lies in a directory, for whom, and where it ends."""

import io
import json
import random

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import SHA256, NamespaceHasher
from hexkv.core.keys.tokens import pack
from hexkv.plugins.__main__ import main
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import (
    KEY_BYTES,
    ChunkKey,
    DType,
    FrameHeader,
    KVLayout,
    Namespace,
    frame_bytes,
)

CHUNK = 16
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=3, heads=2, key_width=8, value_width=4)
NAMESPACE = Namespace("toy", LAYOUT, revision="1")
PROMPT = random.Random(3).choices(range(50_000), k=6 * CHUNK + 5)
OTHER = random.Random(4).choices(range(50_000), k=6 * CHUNK)
FULL = 6 * CHUNK


def computed(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


@pytest.fixture
def cache(tmp_path):
    """A disk store with 6 chunks of one model, and 3 of another with a salt."""
    root = tmp_path / "cache"
    tiers = [{"store": "disk", "settings": {"root": str(root)}}]
    loaded = load(None, {}, {"chunk": {"size": CHUNK}, "pool": {"bytes": "1MiB"}, "tiers": tiers})
    for namespace, end in ((NAMESPACE, FULL), (Namespace("b", LAYOUT, salt="hunter2"), 3 * CHUNK)):
        with build(loaded, namespace) as engine:
            engine.store(PROMPT[:end], computed(PROMPT[:end]))
    return root


@pytest.fixture
def hexkv(capsys, monkeypatch, tmp_path):
    """Runs ``hexkv explain`` with a prompt in a file; gives exit code, output and errors."""
    monkeypatch.delenv("HEXKV_CONFIG", raising=False)
    file = tmp_path / "prompt"

    def call(prompt, root, *words):
        file.write_text(prompt if isinstance(prompt, str) else json.dumps(prompt))
        code = main(["explain", "--tokens", str(file), "--dir", str(root), *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def in_json(answer):
    code, out, err = answer
    assert err == ""
    return code, {found["identity"]["model"]: found for found in json.loads(out)["namespaces"]}


@each("text", [json.dumps(PROMPT), " ".join(map(str, PROMPT)) + "\n"])
def test_a_prompt_that_is_there_for_some_model_is_a_full_hit(hexkv, cache, text):
    code, found = in_json(hexkv(text, cache, "--json"))
    assert code == 0
    assert (found["toy"]["hit_tokens"], found["toy"]["full"]) == (FULL, True)
    assert (found["b"]["hit_chunks"], found["b"]["why"]) == (3, "absent")
    assert found["b"]["first_miss"] == {"chunk": 3, "start": 48, "end": 64}


def test_the_prompt_may_come_on_standard_input(cache, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(PROMPT)))
    assert main(["explain", "-", "--dir", str(cache)]) == 0
    assert "96 of 101 tokens are there" in capsys.readouterr().out


def test_a_prompt_that_ends_elsewhere_says_where_it_ends(hexkv, cache):
    code, out, _ = hexkv(PROMPT[: CHUNK + 3] + OTHER, cache)
    assert code == 1
    assert "tokens 16 to 32" in out
    assert "absent" in out
    disk = {"store": "disk", "tails": True, "settings": {"root": str(cache)}}
    wanted = {"chunk": {"size": CHUNK, "tail": 2}, "pool": {"bytes": "1MiB"}, "tiers": [disk]}
    with build(load(None, {}, wanted), NAMESPACE) as engine:
        engine.store(PROMPT[: CHUNK + 3], computed(PROMPT[: CHUNK + 3]))
    assert f"{CHUNK + 2} of " in hexkv(PROMPT[: CHUNK + 3] + OTHER, cache)[1]


def test_only_the_models_asked_for_count(hexkv, cache):
    code, found = in_json(hexkv(PROMPT, cache, "--json", "--identity", "b"))
    assert (code, list(found)) == (1, ["b"])


def test_where_every_header_is_damaged_nobody_can_be_named(hexkv, cache):
    for file in cache.rglob("*.hexkv"):
        file.write_bytes(file.read_bytes()[:-1])
    code, found = in_json(hexkv(PROMPT, cache, "--json"))
    assert code == 1
    assert found == {}
    code, out, _ = hexkv(PROMPT, cache)
    assert "0 of 101 tokens" in out


def test_a_damaged_chunk_among_whole_ones_ends_the_hit(hexkv, cache):
    keyer = NamespaceHasher(NAMESPACE, SHA256, PrefixChunker(CHUNK))
    key = keyer.name(pack(PROMPT))[2]
    (file,) = cache.rglob(f"{key.hex()}.hexkv")
    file.write_bytes(file.read_bytes()[:-1])
    _, found = in_json(hexkv(PROMPT, cache, "--json"))
    assert found["toy"]["hit_chunks"] == 2
    assert found["toy"]["why"].startswith("damaged: ")


@each(
    ("identity", "why"),
    [
        ('{"algorithm":"sha256","format":2,"scheme":"segment/256"}', "by a prompt alone"),
        ('{"algorithm":"md5","format":2,"scheme":"prefix/16"}', "which is not known"),
        ('{"algorithm":"sha256","format":3,"scheme":"prefix/16"}', "are made with"),
        ('{"algorithm":"sha256","format":2,"scheme":"prefix/many"}', "another version"),
        ('{"algorithm":"sha256","format":2,"scheme":"prefix/0"}', "at least one token"),
        ("[]", "another version"),
        ("not JSON", "another version"),
    ],
)
def test_frames_of_which_nothing_can_be_said_do_not_hide_the_others(hexkv, cache, identity, why):
    frame = memoryview(bytearray(frame_bytes(100)))
    key = ChunkKey(bytes(KEY_BYTES))
    FrameCodec(CRC32).seal(frame, FrameHeader(key, identity, 4, "raw", 100, 100, 1.0))
    (cache / "odd").write_bytes(frame)
    code, out, _ = hexkv(PROMPT, cache, "--json")
    found = json.loads(out)["namespaces"]
    assert (code, len(found)) == (0, 3)
    assert why in found[-1]["why"]
    assert why in hexkv(PROMPT, cache)[1]


@each(
    ("text", "fields"),
    [
        (f"model: {{name: toy}}\nchunk: {{size: {CHUNK}}}", []),
        (f"model: {{name: toy, revision: '2'}}\nchunk: {{size: {CHUNK}}}", ["extra.revision"]),
        (f"model: {{name: toy, weights: '2'}}\nchunk: {{size: {CHUNK}}}", ["revision"]),
        ("model: {name: toy}\nhash: blake2b", ["algorithm", "scheme"]),
        (
            f"model: {{salt: abc, extra: {{q: int4}}}}\nchunk: {{size: {CHUNK}}}",
            ["extra.q", "salt"],
        ),
    ],
)
def test_a_configuration_is_compared_field_by_field(hexkv, cache, tmp_path, text, fields):
    config = tmp_path / "hexkv.yaml"
    config.write_text(text)
    code, found = in_json(hexkv(PROMPT, cache, "--json", "--identity", "toy", "--config", config))
    assert [d["field"] for d in found["toy"]["differs"]] == fields
    assert code == (1 if fields else 0)


@each("text", ["", "[]", "one two", "[1, -2]", "[1.5]", '["1"]', "{}", "[" * 100_000, "9" * 6000])
def test_a_prompt_file_of_something_else_is_one_line_and_called_wrongly(hexkv, cache, text):
    code, out, err = hexkv(text, cache)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_what_cannot_be_read_is_one_line_and_called_wrongly(hexkv, cache, tmp_path, capsys):
    code, _, err = hexkv(PROMPT, tmp_path / "nowhere")
    assert (code, err.count("\n")) == (2, 1)
    assert main(["explain", str(tmp_path / "no file"), "--dir", str(cache)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
