"""A host that names its pages itself shares chunks with one that gives tokens."""

import hashlib

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.keys.tokens import pack
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, InvalidRequest
from prompts import FULL, PROMPT, computed, empty, memory
from rigging import CHUNK, LAYOUT, PATIENCE


def digests():
    """The prompt as the host names it: a chain of SHA-256 that no namespace seeds."""
    packed, link, links = pack(PROMPT), b"", []
    for start in range(0, FULL * 4, CHUNK * 4):
        link = hashlib.sha256(link + packed[start : start + CHUNK * 4]).digest()
        links.append(link)
    return links


def pages(engine):
    return engine.key_space().specs(digests(), CHUNK)


def soon():
    return Deadline.after(SystemClock(), PATIENCE)


@pytest.fixture
def engine(rig):
    return rig([memory()], seeded=False).engine


def test_what_is_stored_by_tokens_is_found_by_key(engine):
    engine.store(PROMPT, computed())
    assert [spec.key for spec in pages(engine)] == list(engine.chunk_keys(PROMPT))
    assert None not in engine.chunks.match([spec.key for spec in pages(engine)], soon())
    window = HeapKV(LAYOUT, FULL)
    assert engine.chunks.load(pages(engine), window, soon()).hit_tokens == FULL
    assert window.agrees(computed(), FULL)


def test_what_is_stored_by_key_is_found_by_tokens(engine):
    engine.chunks.save(pages(engine), HeapKV(LAYOUT, FULL).compute(PROMPT[:FULL]), soon())
    assert engine.explain(PROMPT).hit_tokens == FULL
    window = empty()
    assert engine.retrieve(PROMPT, window).hit_tokens == FULL
    assert window.agrees(computed(), FULL)


def test_what_is_stored_by_tokens_is_held_and_forgotten_by_key(engine):
    engine.store(PROMPT, computed())
    with engine.chunks.hold(pages(engine), "host", soon()) as hold:
        assert hold.wait(soon())
        assert engine.health().leases["host"] == len(pages(engine))
    assert engine.chunks.forget([spec.key for spec in pages(engine)], soon()) == len(digests())
    assert engine.lookup(PROMPT).hit_tokens == 0


def test_where_the_namespace_seeds_the_chain_the_hosts_names_are_other_chunks(rig):
    engine = rig([memory()]).engine
    engine.store(PROMPT, computed())
    assert set(engine.chunks.match([spec.key for spec in pages(engine)], soon())) == {None}


def test_many_specs_at_once_are_those_made_one_by_one(engine):
    space = engine.key_space()
    assert space.specs(digests(), CHUNK) == [space.spec(digest, CHUNK) for digest in digests()]
    assert space.keys(digests()) == [space.spec(digest, CHUNK).key for digest in digests()]
    for wrong in ([b"short"], [bytes(33)], [bytes(32), b""]):
        with pytest.raises(InvalidRequest):
            space.specs(wrong, CHUNK)
    with pytest.raises(InvalidRequest):
        space.specs(digests(), 0)
