"""One model, one engine that never had a connector, and whatever else a test starts."""

import hashlib
import subprocess
import sys

import pytest

from redis_servers import RedisServer
from vllm_engines import E2E, ROOT, Engine, agree, connector


@pytest.fixture(scope="session")
def model():
    """The tiny model's folder; its name says which version of it."""
    script = E2E / "tiny_llama.py"
    version = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    folder = ROOT / "build" / f"tiny-llama-{version}"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=120)
    return folder


@pytest.fixture(scope="session")
def reference(model, tmp_path_factory):
    """What prompts get without a connector, each alone."""
    known = {}
    with Engine(model, tmp_path_factory.mktemp("reference") / "log") as engine:

        def answers(*prompts):
            for prompt in map(tuple, prompts):
                if prompt not in known:
                    [known[prompt]] = engine.generate(prompt)
            return [known[tuple(prompt)] for prompt in prompts]

        yield answers


@pytest.fixture(scope="session")
def same(reference):
    """``same(engine, *prompts)`` runs them at once: as without a connector, and what was cached."""

    def cached(engine, *prompts):
        answers = engine.generate(*prompts)
        assert agree(answers, reference(*prompts))
        return [answer.cached for answer in answers]

    return cached


@pytest.fixture(scope="module")
def start(model, tmp_path_factory):
    """Starts engines with hexkv; the module's end ends those that no test has ended."""
    engines = []

    def begin(config, *, by_name=False, env=None, options=None, **settings):
        log = tmp_path_factory.mktemp("engine") / "log"
        transfer = connector(config, by_name=by_name, **(options or {}))
        engines.append(Engine(model, log, transfer=transfer, env=env, **settings))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.kill()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server
