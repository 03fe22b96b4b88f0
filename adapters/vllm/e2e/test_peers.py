"""Two real vLLM engines that read from each other, and share no store."""

import signal

import pytest

from engines.vllm.vllm_engines import prompt
from processes import freeze, until
from servers.directory_servers import SECRET, DirectoryProcess

pytestmark = pytest.mark.thorough

CHUNK = 64
TOKENS = 10 * CHUNK + 9
HIT = 10 * CHUNK


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Memory, and peers; each engine serves at a port of its own."""
    secret = tmp_path_factory.mktemp("directory") / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    known = {"secret_file": str(secret)}
    with DirectoryProcess("--secret-file", str(secret)) as directory:
        yield {
            "chunk": {"size": CHUNK},
            "pool": {"bytes": "128MiB"},
            "tiers": [{"store": "memory"}, {"store": "peers", "settings": {"locate": 30.0}}],
            "directory": {
                "adapter": "embedded",
                "settings": known | {"address": str(directory.address)},
            },
            "peers": {"channel": "tcp", "settings": known},
        }


@pytest.fixture(scope="module")
def first(start, config, same):
    engine = start(config)
    assert same(engine, prompt("shared", TOKENS), prompt("other", TOKENS)) == [0, 0]
    engine.flush()
    return engine


@pytest.fixture(scope="module")
def second(start, config, first):
    return start(config, options={"loading": "async", "async_lookup": True})


def test_the_second_engine_hits_what_the_first_one_computed(first, second, same):
    assert same(second, prompt("shared", TOKENS)) == [HIT]
    assert same(first, prompt("shared", TOKENS)) == [HIT]  # its own


def test_a_peer_that_hangs_costs_a_hit_and_is_read_again_when_it_wakes_up(first, second, same):
    freeze(first._process)
    try:
        assert same(second, prompt("other", TOKENS)) == [0]
    finally:
        first._process.send_signal(signal.SIGCONT)
    count = iter(range(1000))

    def hit():
        words = prompt(f"new {next(count)}", TOKENS)
        assert same(first, words) == [0]
        first.flush()
        return same(second, words) == [HIT]

    until(hit)


def test_what_was_read_from_a_peer_stays_when_that_is_gone(first, second, same):
    first.kill()
    assert same(second, prompt("shared", TOKENS), prompt("gone", TOKENS)) == [HIT, 0]
