"""An operator at work on a vLLM that serves requests: no wrong token, no request that fails."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Event, Thread

import pytest

from engines.vllm.vllm_engines import environment, prompt
from hexkv.adapters.admin.api import connect
from processes import until

pytestmark = pytest.mark.thorough

CHUNK = 64
TOKENS = 10 * CHUNK + 9
HIT = 10 * CHUNK
TENANT = {"name": "red", "salt": "of the red tenant"}


class Load:
    """Requests without a pause, each with the answers that it gets without a cache."""

    def __init__(self, engine, same, prompts):
        self._engine, self._same, self._prompts = engine, same, prompts
        self._over = Event()
        self.rounds = 0
        self.failure = None
        self._thread = Thread(target=self._run)

    def _run(self):
        try:
            while not self._over.is_set():
                self._same(self._engine, *self._prompts)
                self.rounds += 1
        except (AssertionError, OSError) as error:
            self.failure = error

    def goes_on(self):
        """Wait until a request has been answered that began after this."""
        wanted = self.rounds + 2
        until(lambda: self.failure or self.rounds >= wanted)
        assert self.failure is None

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


@pytest.fixture
def folder():
    """Unix sockets have short paths."""
    made = Path(mkdtemp(prefix="hexkv"))
    yield made
    rmtree(made)


@pytest.fixture
def hexkv(folder):
    """``hexkv(verb, ...)``: the command, on the engine; what it says as JSON."""

    def run(*words):
        command = [sys.executable, "-m", "hexkv.plugins", "admin", str(folder / "rank0.sock")]
        done = subprocess.run(
            [*command, *words, "--json"], capture_output=True, text=True, env=environment()
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(done.stdout)

    return run


def test_an_operator_acts_on_an_engine_that_serves_requests(start, same, folder, hexkv):
    config = {
        "chunk": {"size": CHUNK},
        "pool": {"bytes": "64MiB"},
        "tiers": [
            {"store": "memory", "budget": "16MiB"},
            {"store": "disk", "settings": {"root": str(folder / "disk")}},
        ],
        "tenants": [TENANT],
        "admin": {"address": str(folder / "rank{rank}.sock")},
    }
    engine = start(config)
    kept, secret = prompt("kept", TOKENS), prompt("secret", TOKENS)
    assert same(engine, kept) == [0]
    assert same(engine, secret, salt=TENANT["salt"]) == [0]
    assert same(engine, secret, salt=TENANT["salt"]) == [HIT]
    engine.flush()

    def chunks_of(tenant):
        states = hexkv("namespaces")
        return sum(sum(s["chunks"].values()) for s in states if s["tenant"] == tenant)

    with Load(engine, same, [kept, prompt("busy", TOKENS)]) as load:
        load.goes_on()
        assert chunks_of("red") > 0
        cleared = hexkv("clear", "--tenant", "red")
        assert cleared["done"] > 0
        assert chunks_of("red") == 0
        load.goes_on()

        tier = {"store": "disk", "name": "bigger", "settings": {"root": str(folder / "bigger")}}
        (folder / "bigger.yaml").write_text(json.dumps(tier))
        hexkv("attach", str(folder / "bigger.yaml"))
        assert hexkv("drain", "disk")["kept"] == []
        load.goes_on()
        hexkv("detach", "disk")
        load.goes_on()

        there = {t["health"]["name"]: t["health"]["chunks"] for t in hexkv("tiers")}
        assert list(there) == ["memory", "bigger"]
        half = hexkv("compress", "bigger", "zstd", "--oldest", "50%")
        assert half["done"] == half["chunks"] >= there["bigger"] // 2 > 0
        load.goes_on()
        assert hexkv("clear", "--everything", "--tier", "memory")["done"] > 0
        load.goes_on()

    assert load.failure is None
    assert same(engine, kept) == [HIT]
    assert same(engine, secret, salt=TENANT["salt"]) == [0]
    assert set(connect(str(folder / "rank0.sock")).status().leases) <= {"memory store"}
    assert engine.said("clear chosen=(tenant 'red')")
