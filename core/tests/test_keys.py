from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import blake3
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hexkv.core
import hexkv.ports
from depth import thorough
from hexkv.blending.chunking import SegmentChunker
from hexkv.contracts.kit.cases import each
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import BLAKE2B, SHA256, NamespaceHasher, identity
from hexkv.core.keys.tokens import pack
from hexkv.ports import (
    IDENTITY_BYTES,
    KEY_BYTES,
    ConfigError,
    DType,
    HashFunction,
    InvalidRequest,
    KVLayout,
    LayerGroup,
    Namespace,
    ParallelSlice,
    Plane,
    namespace_of,
)

GOLDEN = Path(__file__).with_name("golden_keys.json")
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))

LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=2, heads=2, key_width=4)
PLAIN = Namespace("model", LAYOUT)

# For every field, values that differ from the plain namespace's and from each other.
CHANGES = {
    "model": ["", "Model", "model ", "modèl", "\x7f", "\\\x7f", "\\u007f"],
    "layout": [
        KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=4),
        KVLayout.attention(DType.BFLOAT16, layers=3, heads=2, key_width=4),
        KVLayout.attention(DType.BFLOAT16, layers=2, heads=1, key_width=4),
        KVLayout.attention(DType.BFLOAT16, layers=2, heads=2, key_width=8),
        KVLayout.attention(DType.BFLOAT16, layers=2, heads=2, key_width=4, value_width=8),
        KVLayout.latent(DType.BFLOAT16, layers=2, latent_width=4, rope_width=4),
        KVLayout(DType.BFLOAT16, (LayerGroup(2, (Plane("v", 2, 4), Plane("k", 2, 4))),)),
    ],
    "revision": ["1", "main"],
    "parallel": [ParallelSlice(0, 2), ParallelSlice(1, 2), ParallelSlice(0, 4)],
    "lora": ["1", "adapter"],
    "salt": ["1", "tenant"],
    "extra": [(("a", ""),), (("", "a"),), (("a", "b"),), (("a", "b"), ("c", ""))],
}

TEXT = st.text(max_size=8)
NAMESPACES = st.builds(
    Namespace,
    model=TEXT,
    layout=st.sampled_from([LAYOUT, *CHANGES["layout"]]),
    revision=TEXT,
    parallel=st.sampled_from([ParallelSlice(), *CHANGES["parallel"]]),
    lora=TEXT,
    salt=TEXT,
    extra=st.dictionaries(TEXT, TEXT, max_size=2).map(lambda pairs: tuple(sorted(pairs.items()))),
)
PROMPTS = st.lists(st.integers(0, 3), max_size=30)


def name(keyer, tokens):
    return keyer.name(pack(tokens))


def of_golden(case):
    described = case["namespace"]
    dtype, groups = described["layout"]
    layout = KVLayout(
        DType(dtype),
        tuple(
            LayerGroup(count, tuple(Plane(*plane) for plane in planes)) for count, planes in groups
        ),
    )
    namespace = Namespace(
        **{field: described[field] for field in ("model", "revision", "lora", "salt")},
        layout=layout,
        parallel=ParallelSlice(*described["parallel"]),
        extra=tuple((left, right) for left, right in described["extra"]),
    )
    settings = dict(case["chunker"])
    chunker = {"prefix": PrefixChunker, "segment": SegmentChunker}[settings.pop("kind")](**settings)
    algorithm = {known.name: known for known in (SHA256, BLAKE2B)}[case["algorithm"]]
    tokens = case["tokens"]
    if isinstance(tokens, dict):
        tokens = [i * tokens["multiplier"] % tokens["modulus"] for i in range(tokens["count"])]
    return NamespaceHasher(namespace, algorithm, chunker), tokens


@each("case", CASES, ids=lambda case: case["case"])
def test_identity_bounds_and_keys_are_the_committed_ones(case):
    keyer, tokens = of_golden(case)
    starts, ends = keyer.cut(pack(tokens))
    assert keyer.identity == case["identity"]
    bounds = zip(starts, ends, strict=True)
    assert [list(bound) for bound in bounds] == case["bounds"]
    assert [key.hex() for key in name(keyer, tokens)] == case["keys"]


def test_a_version_of_frames_has_keys_of_its_own():
    # Whoever raises one raises the other, and then this pair: or hosts of two versions that
    # share a store would delete each other's chunks as damaged.
    assert (hexkv.ports.FRAME_VERSION, hexkv.core.keys.hashing.KEY_FORMAT) == (2, 2)


CHILD = """
import sys
sys.path[:0] = sys.argv[1:]
from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.tokens import pack
from hexkv.ports import DType, KVLayout, Namespace, ParallelSlice
layout = KVLayout.latent(DType.BFLOAT16, layers=61, latent_width=512, rope_width=64)
extra = (("image", "0f3a"), ("quant", "awq"))
namespace = Namespace("m", layout, "r", ParallelSlice(3, 8), "lora", "salt", extra)
print(NamespaceHasher(namespace).name(pack(range(1024)))[-1].hex(), hash("a") % 1000)
"""


@pytest.mark.parametrize("processes", [8, *thorough(100)])
def test_processes_with_other_hash_seeds_agree(processes):
    roots = {str(Path(module.__file__).parents[2]) for module in (hexkv.core, hexkv.ports)}

    def run(seed):
        child = subprocess.run(
            [sys.executable, "-S", "-c", CHILD, *sorted(roots)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            timeout=300,
        )
        return child.stdout.split()

    with ThreadPoolExecutor(4) as threads:
        keys, hashes = zip(*threads.map(run, range(1, processes + 1)), strict=True)
    assert len(set(hashes)) > processes // 2, "the seeds did nothing: the test shows nothing"
    assert set(keys) == {keys[0]}
    assert len(keys[0]) == 2 * KEY_BYTES


@pytest.mark.parametrize("algorithm", [SHA256, BLAKE2B], ids=lambda algorithm: algorithm.name)
@given(prompt=st.lists(st.integers(0, 2**32 - 1), max_size=20), size=st.integers(1, 5))
def test_keys_follow_the_documented_rule(algorithm, prompt, size):
    keyer = NamespaceHasher(PLAIN, algorithm, PrefixChunker(size, tail=1))
    link = algorithm.digest(identity(PLAIN, f"prefix/{size}", algorithm.name).encode())
    assert keyer.root == link
    expected = []
    for at in range(0, len(prompt), size):
        words = b"".join(token.to_bytes(4, "little") for token in prompt[at : at + size])
        link = algorithm.digest(link + words)
        expected.append(keyer.root[:16] + link)
    assert name(keyer, prompt) == expected


def test_the_changes_below_reach_every_field_of_a_namespace():
    assert set(CHANGES) == {field.name for field in dataclasses.fields(Namespace)}


@given(data=st.data(), base=NAMESPACES, prompt=st.lists(st.integers(0, 9), min_size=2, max_size=9))
def test_any_single_changed_field_changes_every_key(data, base, prompt):
    field = data.draw(st.sampled_from(sorted(CHANGES)))
    values = [value for value in CHANGES[field] if value != getattr(base, field)]
    changed = replace(base, **{field: data.draw(st.sampled_from(values))})
    chunker = PrefixChunker(2, tail=1)
    one, other = (NamespaceHasher(namespace, chunker=chunker) for namespace in (base, changed))
    assert one.prefix != other.prefix
    assert not set(name(one, prompt)) & set(name(other, prompt))


@given(NAMESPACES, NAMESPACES)
def test_two_namespaces_have_one_identity_exactly_if_they_are_equal(one, other):
    assert (identity(one, "s", "a") == identity(other, "s", "a")) == (one == other)


def test_two_spellings_of_a_layout_are_one():
    (group,) = LAYOUT.groups
    spelled = KVLayout(LAYOUT.dtype, (LayerGroup(1, group.planes),) * 2)
    assert identity(PLAIN, "s", "a") == identity(replace(PLAIN, layout=spelled), "s", "a")


def test_algorithm_and_scheme_change_every_key():
    renamed = HashFunction("sha256/2", SHA256.digest)
    keyers = [
        NamespaceHasher(PLAIN, algorithm, chunker)
        for algorithm in (SHA256, BLAKE2B, renamed)
        for chunker in (PrefixChunker(4), PrefixChunker(2), SegmentChunker([99], maximum=4))
    ]
    keys = [key for keyer in keyers for key in name(keyer, range(8))]
    assert len(set(keys)) == len(keys) == 3 * (2 + 4 + 2)


@given(one=PROMPTS, other=PROMPTS, size=st.integers(1, 4))
def test_prompts_share_keys_exactly_as_far_as_they_share_chunks(one, other, size):
    keyer = NamespaceHasher(PLAIN, chunker=PrefixChunker(size))
    left, right = name(keyer, one), name(keyer, other)
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    shared = same // size
    assert left[:shared] == right[:shared]
    assert not set(left[shared:]) & set(right[shared:])


def test_a_kept_tail_leaves_the_keys_of_full_chunks_alone():
    full = name(NamespaceHasher(PLAIN, chunker=PrefixChunker(4)), range(10))
    kept = name(NamespaceHasher(PLAIN, chunker=PrefixChunker(4, tail=1)), range(10))
    assert kept[:2] == full
    assert len(kept) == 3


@given(before=PROMPTS, segment=st.lists(st.integers(0, 3), min_size=1, max_size=9), after=PROMPTS)
def test_a_segment_has_the_same_keys_wherever_it_stands(before, segment, after):
    keyer = NamespaceHasher(PLAIN, chunker=SegmentChunker([9], maximum=4))
    alone = name(keyer, segment)
    whole = [*before, 9, *segment, 9, *after]
    first = list(keyer.cut(pack(whole)).starts).index(len(before) + 1)
    assert name(keyer, whole)[first : first + len(alone)] == alone


def test_a_piece_of_a_segment_is_named_by_the_segment_up_to_its_end():
    keyer = NamespaceHasher(PLAIN, chunker=SegmentChunker([9], maximum=2))
    one, other = name(keyer, [1, 2, 5, 6]), name(keyer, [3, 4, 5, 6])
    assert one[1] != other[1]
    assert name(keyer, [1, 2, 9, 5, 6])[1] == name(keyer, [5, 6])[0] != one[1]


def test_an_empty_prompt_has_no_chunks_and_one_token_has_one_if_tails_are_kept():
    assert name(NamespaceHasher(PLAIN), []) == []
    assert name(NamespaceHasher(PLAIN), [7]) == []
    keyer = NamespaceHasher(PLAIN, chunker=PrefixChunker(tail=1))
    starts, ends = keyer.cut(pack([7]))
    assert (len(name(keyer, [7])), list(starts), list(ends)) == (1, [0], [1])


def test_keys_lead_with_their_namespace():
    keyer = NamespaceHasher(PLAIN)
    for key in name(keyer, range(512)):
        assert len(key) == KEY_BYTES
        assert namespace_of(key) == keyer.prefix


def test_the_salt_is_written_as_a_digest_only():
    salted = replace(PLAIN, salt="hunter2")
    text = identity(salted, "s", "a")
    assert "hunter2" not in text + repr(salted)
    assert json.loads(text)["salt"] == hashlib.sha256(b"hexkv salt\0hunter2").hexdigest()
    assert json.loads(identity(PLAIN, "s", "a"))["salt"] == ""


@given(NAMESPACES, st.sampled_from(CHANGES["model"]))
def test_an_identity_is_canonical_json_and_safe_to_print(namespace, model):
    namespace = replace(namespace, model=model + namespace.model)
    text = identity(namespace, "s", "a")
    assert text.isascii()
    assert text.isprintable()
    fields = json.loads(text)
    assert (fields["model"], fields["lora"]) == (namespace.model, namespace.lora)
    assert list(fields) == sorted(fields)


def test_an_identity_fits_a_frame_s_header_or_is_refused():
    spare = IDENTITY_BYTES - len(identity(replace(PLAIN, model=""), "prefix/256", "sha256"))
    assert len(NamespaceHasher(replace(PLAIN, model="m" * spare)).identity) == IDENTITY_BYTES
    with pytest.raises(ConfigError, match="has room for 2048"):
        NamespaceHasher(replace(PLAIN, model="m" * (spare + 1)))


@each("field", ["model", "revision", "lora", "salt"])
def test_surrogates_are_no_text(field):
    with pytest.raises(ConfigError):
        NamespaceHasher(replace(PLAIN, **{field: "\ud83d\ude00"}))


KINDS = {
    **dict.fromkeys(("model", "revision", "lora", "salt"), (None, 5, b"x")),
    "layout": (None, "float32", ()),
    "parallel": (None, (0, 1), 0),
    "extra": (None, 5, {"a": "b"}, [("a", "b")], (("a", 1),), (("a",),), (("b", ""), ("a", ""))),
}


def test_values_of_other_kinds_are_refused_by_the_field():
    for name, wrong in ((name, wrong) for name, values in KINDS.items() for wrong in values):
        with pytest.raises(InvalidRequest, match=name):
            replace(PLAIN, **{name: wrong})
    plane = Plane("k", 1, 2)
    for made, name, wrong in [(ParallelSlice(), "rank", True), (ParallelSlice(), "world", "1"),
                              (plane, "heads", 1.5), (plane, "name", 1), (LAYOUT, "groups", []),
                              (LayerGroup(1, (plane,)), "layers", 1.0),
                              (LAYOUT, "dtype", "float16")]:  # fmt: skip
        with pytest.raises(InvalidRequest, match=f"{name} is of type "):
            replace(made, **{name: wrong})


def test_a_hash_of_another_length_is_refused():
    with pytest.raises(ConfigError, match="gives 20 bytes, not 32"):
        NamespaceHasher(PLAIN, HashFunction("sha1", lambda data: hashlib.sha1(data).digest()))


def test_a_hash_may_be_injected():
    keyer = NamespaceHasher(
        PLAIN, HashFunction("blake3", lambda data: blake3.blake3(data).digest())
    )
    words = b"".join(token.to_bytes(4, "little") for token in range(256))
    expected = blake3.blake3(keyer.root + words).digest()
    assert name(keyer, range(256)) == [keyer.prefix + expected]


def test_keys_can_be_named_from_what_a_frame_says_alone():
    secret = replace(PLAIN, salt="hunter2")
    chunker = PrefixChunker(16)
    keyer = NamespaceHasher(secret, BLAKE2B, chunker)
    found = NamespaceHasher.of_identity(keyer.identity, BLAKE2B, chunker)
    packed = memoryview(bytes(8 * 16))
    assert found.name(packed) == keyer.name(packed)
    assert found.identity == keyer.identity


@each(
    ("change", "message"),
    [
        (lambda text: text.replace("sha256", "md5"), "are made with"),
        (lambda text: text.replace("prefix/16", "prefix/32"), "are made with"),
        (lambda text: "{}", "no identity"),
        (lambda text: "[" * 100_000, "no identity"),
        (
            lambda text: text.replace("model", "m\N{LATIN SMALL LETTER O WITH DIAERESIS}del"),
            "no id",
        ),
    ],
    ids=["another hash", "another scheme", "empty", "deep", "not ASCII"],
)
def test_an_identity_of_something_else_is_refused(change, message):
    text = change(NamespaceHasher(PLAIN, SHA256, PrefixChunker(16)).identity)
    with pytest.raises(ConfigError, match=message):
        NamespaceHasher.of_identity(text, SHA256, PrefixChunker(16))


def page_hashes(size, tokens):
    """SGLang's page keys: SHA-256 over the digest before and the tokens as little-endian uint32."""
    link = b""
    for at in range(0, len(tokens) // size * size, size):
        packed = b"".join(t.to_bytes(4, "little") for t in tokens[at : at + size])
        link = hashlib.sha256(link + packed).digest()
        yield link


@given(tokens=st.lists(st.integers(0, 2**32 - 1), max_size=40), size=st.integers(1, 9))
def test_an_unseeded_chain_names_tokens_as_hosts_do_that_name_their_pages(tokens, size):
    keyer = NamespaceHasher(PLAIN, chunker=PrefixChunker(size), seeded=False)
    digests = list(page_hashes(size, tokens))
    assert name(keyer, tokens) == [keyer.prefix + digest for digest in digests]


def test_an_unseeded_chain_has_a_namespace_of_its_own():
    keyers = [
        NamespaceHasher(PLAIN, chunker=PrefixChunker(4), seeded=seeded) for seeded in (True, False)
    ]
    assert keyers[0].prefix != keyers[1].prefix
    for keyer in keyers:
        again = NamespaceHasher.of_identity(keyer.identity, SHA256, PrefixChunker(4))
        assert name(again, range(9)) == name(keyer, range(9))
