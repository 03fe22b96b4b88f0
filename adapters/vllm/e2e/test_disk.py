"""Hits from the disk in a process that stored nothing, and what a bad disk does to them."""

from contextlib import closing

import pytest

from depth import thorough
from engines.vllm.vllm_engines import PATIENT, connector, prompt
from engines.vllm.vllm_frames import cut, damage, frames, poison, sound
from media.bad_sectors import BadSectorsElsewhere

CHUNK = 64
CHUNKS = 14
TOKENS = CHUNKS * CHUNK + 9


def config(root):
    """The disk alone: nothing hides what lies on it."""
    disk = {"store": "disk", "settings": {"root": str(root)}}
    return {"chunk": {"size": CHUNK}, "pool": {"bytes": "128MiB"}, "tiers": [disk]}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def every_seventh(start, root):
    """The files of every 7th chunk by prompt, which an engine stored that has ended."""
    files = {}
    engine = start(config(root))

    def store(words, new):
        """The files that come with *words*, whose last *new* chunks are not stored yet."""
        before = frames(root)
        engine.generate(words)
        engine.flush()
        grown = frames(root) - before
        assert len(grown) == new
        return grown

    for name in ("fresh", "poisoned", "damaged", "cut", "removed"):
        words = prompt(name, TOKENS)
        steps = ((6, 6), (7, 1), (13, 6), (CHUNKS, 1))
        grown = [store(words[: chunks * CHUNK + 1], new) for chunks, new in steps]
        files[name] = [*grown[1], *grown[3]]
    engine.close()
    return files


@pytest.fixture(scope="module")
def engine(start, root, every_seventh):
    return start(config(root))


def test_a_fresh_process_loads_what_another_stored(engine, same):
    assert same(engine, prompt("fresh", TOKENS)) == [CHUNKS * CHUNK]


def test_other_kv_in_its_place_means_other_tokens(engine, reference, every_seventh):
    """The control: what is loaded is what the tokens depend on."""
    words = prompt("poisoned", TOKENS)
    for file in every_seventh["poisoned"]:
        poison(file)
    [answer] = engine.generate(words)
    assert answer.cached == CHUNKS * CHUNK
    [expected] = reference(words)
    assert answer.tokens != expected.tokens


@pytest.mark.parametrize(
    ("name", "break_it"),
    [("damaged", damage), *thorough(("cut", cut), ("removed", lambda file: file.unlink()))],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_seventh_chunk_fails_and_is_computed_and_stored_again(
    engine, same, every_seventh, name, break_it
):
    words = prompt(name, TOKENS)
    for file in every_seventh[name]:
        break_it(file)
        assert not sound(file)
    same(engine, words)
    engine.flush()
    assert all(map(sound, every_seventh[name]))
    assert same(engine, words) == [CHUNKS * CHUNK]


def test_where_failed_loads_fail_requests_a_bad_sector_fails_one(start, same, tmp_path_factory):
    """The file of one chunk cannot be read, and the host ends a request whose load fails."""
    root = tmp_path_factory.mktemp("sectors")
    transfer = connector(PATIENT | config(root)) | {"kv_load_failure_policy": "fail"}
    with closing(BadSectorsElsewhere(tmp_path_factory.mktemp("bad"))) as sectors:
        engine = start(config(root), transfer=transfer, env=sectors.env)
        words = prompt("bad sector", TOKENS)
        before = 7 * CHUNK + 1
        same(engine, words[:before])
        engine.flush()
        first = frames(root)
        assert same(engine, words) == [7 * CHUNK]
        engine.flush()
        assert same(engine, words) == [CHUNKS * CHUNK]
        sectors.spoil(min(frames(root) - first))
        finished = []
        for _ in range(4):
            [answer] = engine.generate(words)
            engine.flush()
            finished.append(answer.finish)
        assert finished == ["error", "length", "length", "length"]
        assert same(engine, words) == [CHUNKS * CHUNK]
        log = engine.log.read_text()
        assert log.count("it is not used until it is written anew") == 1
        engine.close()
