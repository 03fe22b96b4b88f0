"""One model, one engine that never had a connector, and whatever else a test starts."""

import hashlib
import subprocess
import sys

import pytest

from engines.vllm.vllm_engines import E2E, PATIENCE, PATIENT, ROOT, Engine, Reference, connector
from servers.redis_servers import RedisServer


@pytest.fixture(scope="session")
def built():
    """``built(name)``: the folder of a tiny model; it says which version of it."""

    def build(name):
        script = E2E / f"{name}.py"
        sources = b"".join(path.read_bytes() for path in (E2E / "tiny_llama.py", script))
        version = hashlib.sha256(sources).hexdigest()[:8]
        folder = ROOT / "build" / f"{name.replace('_', '-')}-{version}"
        subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=PATIENCE)
        return folder

    return build


@pytest.fixture(scope="session")
def model(built):
    return built("tiny_llama")


@pytest.fixture(scope="session")
def reference(model, tmp_path_factory):
    """What prompts get without a connector, each alone."""
    with Engine(model, tmp_path_factory.mktemp("reference") / "log") as engine:
        yield Reference(engine)


@pytest.fixture(scope="session")
def same(reference):
    """``same(engine, *prompts)`` runs them at once: as without a connector, and what was cached."""
    return reference.same


@pytest.fixture(scope="module")
def start(model, tmp_path_factory):
    """Starts engines with hexkv; the module's end ends those that no test has ended."""
    engines = []

    def begin(config, *, by_name=False, env=None, options=None, transfer=None, **settings):
        log = tmp_path_factory.mktemp("engine") / "log"
        transfer = transfer or connector(PATIENT | config, by_name=by_name, **(options or {}))
        engines.append(Engine(model, log, transfer=transfer, env=env, **settings))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.kill()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server
