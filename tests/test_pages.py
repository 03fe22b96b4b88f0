"""A host that names its pages itself shares chunks with one that gives tokens."""

import hashlib

import pytest

from hexkv.contracts.heap_kv import HeapKV
from hexkv.core.keys.tokens import pack
from hexkv.ports import InvalidTokens, Pages
from prompts import FULL, PROMPT, computed, empty, memory
from rigging import CHUNK, LAYOUT


def pages():
    """The prompt as the host names it: a bare chain of SHA-256."""
    packed, link, links = pack(PROMPT), b"", []
    for start in range(0, FULL * 4, CHUNK * 4):
        link = hashlib.sha256(link + packed[start : start + CHUNK * 4]).digest()
        links.append(link)
    return Pages(links, CHUNK)


def test_what_is_stored_by_tokens_is_found_by_pages(rig):
    r = rig([memory()], seeded=False)
    r.engine.store(PROMPT, computed())
    assert r.engine.lookup(pages()).hit_tokens == FULL
    window = HeapKV(LAYOUT, FULL)
    assert r.engine.retrieve(pages(), window).hit_tokens == FULL
    assert window.agrees(computed(), FULL)


def test_what_is_stored_by_pages_is_found_by_tokens(rig):
    r = rig([memory()], seeded=False)
    r.engine.store(pages(), HeapKV(LAYOUT, FULL).compute(PROMPT[:FULL]))
    window = empty()
    assert r.engine.retrieve(PROMPT, window).hit_tokens == FULL
    assert window.agrees(computed(), FULL)


def test_pages_are_explained_and_cleared_like_tokens(rig):
    r = rig([memory()], seeded=False)
    r.engine.store(PROMPT, computed())
    assert r.engine.explain(pages()).diverges is None
    assert r.engine.clear(pages()).chunks == len(pages().digests)
    assert r.engine.lookup(PROMPT).hit_tokens == 0


def test_pages_are_refused_where_keys_are_chained_to_the_namespace(rig):
    r = rig([memory()])
    with pytest.raises(InvalidTokens, match="unseeded"):
        r.engine.lookup(pages())
