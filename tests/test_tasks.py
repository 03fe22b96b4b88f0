"""Tasks of people, each from wheels in an empty environment, with its minutes.

A hit in a program and a configuration of LMCache are in ``test_wheels.py``, a hit in vLLM in the
tests of its adapter.
"""

import os
import signal
import subprocess
import time
from contextlib import contextmanager

import pytest

from administration import short_folder
from installing import PIP, ROOT, build, environment, run
from processes import until

pytestmark = pytest.mark.thorough

ENGINE = """\
import sys
from hexkv.api import Finished, KVLayout, open_cache

class Window:
    def __init__(self, tokens):
        self.layout, self.tokens, self.kv = layout, tokens, {}

    def gather(self, spans, layers=None):
        for start, end, data in spans:
            data[:] = bytes([end // 256]) * data.nbytes
        return Finished()

    def scatter(self, spans, layers=None):
        self.kv |= {end: bytes(data)[:1] for start, end, data in spans}
        return Finished()

layout = KVLayout.attention("float16", layers=2, heads=1, key_width=8)
prompt = list(range(600))
with open_cache(sys.argv[1], model="toy", layout=layout) as cache:
    got = cache.retrieve(prompt, window := Window(len(prompt)))
    cache.store(prompt, Window(len(prompt)))
    print(got.hit_tokens, window.kv, cache.lookup([*prompt[:300], *prompt]).missing)
"""
WHY = """\
import sys
from hexkv.api import KVLayout, open_cache
layout = KVLayout.attention("float16", layers=2, heads=1, key_width=8)
with open_cache(sys.argv[1], model="toy", layout=layout) as cache:
    print(cache.explain(list(range(600))))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    needed = ("adapters/local", "adapters/net", "adapters/node", "contracts")
    return build(tmp_path_factory.mktemp("wheels"), [ROOT, *(ROOT / folder for folder in needed)])


@contextmanager
def minutes(task, capsys):
    began = time.monotonic()
    yield
    with capsys.disabled():
        print(f"\n{task}: {(time.monotonic() - began) / 60:.1f} minutes")  # noqa: T201


def test_a_node_serves_two_engines(wheels, tmp_path, capsys):
    with minutes("a node for two engines", capsys), short_folder() as folder:
        python = environment(tmp_path / "env", wheels, "hexkv[local,node]")
        (tmp_path / "node.yaml").write_text("pool: {bytes: 64MiB}\ntiers: [{store: memory}]\n")
        (tmp_path / "engine.yaml").write_text(f"node: {folder}/node.sock\n")
        command = [python.parent / "hexkv", "node", "--config", "node.yaml"]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        node = subprocess.Popen(
            [*command, "--socket", f"{folder}/node.sock"], cwd=tmp_path, env=clean
        )
        try:
            until((folder / "node.sock").exists)
            engine = [python, "-I", "-c", ENGINE, "engine.yaml"]
            assert run(*engine, cwd=tmp_path).startswith("0 {}")
            assert run(*engine, cwd=tmp_path).startswith(r"512 {256: b'\x01', 512: b'\x02'}")
        finally:
            node.send_signal(signal.SIGTERM)
            assert node.wait(60) == 0


def test_a_program_answers_why_a_prompt_missed(wheels, tmp_path, capsys):
    with minutes("why it missed", capsys):
        python = environment(tmp_path / "env", wheels, "hexkv[local]")
        (tmp_path / "c.yaml").write_text("pool: {bytes: 64MiB}\ntiers: [{store: memory}]\n")
        said = run(python, "-I", "-c", WHY, "c.yaml", cwd=tmp_path)
        assert "0 of 600 tokens" in said
        assert "memory: never stored" in said


def test_an_adapter_is_made_and_keeps_its_contract(wheels, tmp_path, capsys):
    with minutes("an adapter", capsys):
        python = environment(
            tmp_path / "env", wheels, "hexkv[local]", "hexkv-contracts[new-adapter]"
        )
        hexkv = python.parent / "hexkv"
        run(hexkv, "new-adapter", "policy", "acme-shelf", cwd=tmp_path)
        build_it = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "made"]
        run(*PIP, *build_it, "./acme-shelf", cwd=tmp_path)
        offline = ["install", "--quiet", "--no-index", "--no-deps"]
        run(*PIP, "--python", python, *offline, *(tmp_path / "made").iterdir(), cwd=tmp_path)
        run(hexkv, "check", "acme-shelf", cwd=tmp_path)
