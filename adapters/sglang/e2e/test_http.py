"""What an operator does to a server that runs: attach, detach, clear; and users kept apart."""

import json

import pytest

from engines.sglang.sglang_engines import DYNAMIC, PAGE, PAGES, PATIENT, frames, prompt
from engines.sglang.sglang_server import Server, log_of_failed_start
from processes import until

FULL = PAGES * PAGE


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def config(root):
    disk = {"store": "disk", "settings": {"root": str(root)}}
    ours = {"pool": {"bytes": "64MiB"}, "deadlines": PATIENT, "tiers": [disk]}
    return DYNAMIC | {"prefetch_threshold": PAGE} | ours


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    """A server with host memory and nothing behind it."""
    behind = {"enable_hierarchical_cache": True, "hicache_ratio": 2.0}
    with Server(model, tmp_path_factory.mktemp("server"), **behind) as one:
        yield one


@pytest.fixture
def asked(server, reference):
    """Asks for a prompt; how much came from hexkv. The tokens are always transformers' own."""

    def ask(words, **more):
        tokens, storage = server.generate(words, **more)
        assert tokens == reference(words)
        return storage

    return ask


@pytest.fixture
def attached(server, config):
    status, said = server.attach(**config)
    assert status == 200, said
    yield
    status, said = server.detach()
    assert status == 200, said


def stored(root, pages):
    until(lambda: len(frames(root)) == pages)


def test_a_server_that_cannot_start_ends_its_log_with_the_cause(model, tmp_path):
    (tmp_path / "file").touch()
    disk = {"store": "disk", "settings": {"root": str(tmp_path / "file")}}
    wrong = {
        "enable_hierarchical_cache": True,
        "hicache_ratio": 2.0,
        "hicache_storage_backend": "dynamic",
        "hicache_storage_backend_extra_config": json.dumps(DYNAMIC | {"tiers": [disk]}),
    }
    *_, first, last = log_of_failed_start(model, tmp_path, **wrong)
    assert first == "SGLang does not start, because hexkv cannot:"
    assert "tiers[0].settings.root" in last


def test_a_backend_is_attached_and_detached_while_the_server_runs(server, config, asked, root):
    words = prompt("at run time")
    assert asked(words) == 0
    server.flush()
    for found in (0, FULL):
        assert server.attach(**config)[0] == 200
        assert asked(words) == found
        stored(root, PAGES)
        assert server.detach()[0] == 200
        server.flush()
        assert asked(words) == 0
        server.flush()


def test_a_wrong_setting_is_refused_by_name_and_the_server_goes_on(server, config, asked):
    status, said = server.attach(**config, nmaespace="own")
    assert status == 400
    assert "nmaespace" in said
    assert asked(prompt("after a refusal")) == 0


@pytest.mark.usefixtures("attached")
def test_a_salt_and_a_key_of_a_request_keep_its_pages_apart(server, asked, root):
    words, before = prompt("of two tenants"), len(frames(root))
    for number, whose in enumerate(({"cache_salt": "a"}, {"extra_key": "a"}, {}), 1):
        assert asked(words, **whose) == 0
        stored(root, before + number * PAGES)
        server.flush()
    assert asked(words, cache_salt="b") == 0
    for whose in ({"cache_salt": "a"}, {"extra_key": "a"}, {}):
        server.flush()
        assert asked(words, **whose) == FULL


@pytest.mark.usefixtures("attached")
def test_damage_is_counted_where_sglang_serves_its_metrics(server, asked, root):
    words, known = prompt("counted"), frames(root)
    assert asked(words) == 0
    stored(root, len(known) + PAGES)
    server.flush()
    victim = min(frames(root) - known)
    victim.write_bytes(bytes(victim.stat().st_size))
    damaged = server.counted("hexkv_corrupt_total")
    assert asked(words) < FULL
    assert server.counted("hexkv_corrupt_total") == damaged + 1
    assert server.counted("hexkv_read_seconds_count") > 0


@pytest.mark.usefixtures("attached")
def test_clearing_over_http_empties_the_tiers(server, asked, root):
    words = prompt("to be forgotten")
    asked(words)
    until(lambda: len(frames(root)) >= PAGES)
    server.flush()
    assert server.ask("POST", "/hicache/storage-backend/clear")[0] == 200
    assert not frames(root)
    assert asked(words) == 0
