"""One model, what transformers says it answers, and the engines that tests start."""

import functools
import hashlib
import subprocess
import sys
import warnings

import pytest
import torch

from engines.sglang.sglang_engines import ADAPTER, PATIENCE, ROOT, Engine
from servers.redis_servers import RedisServer

sys.path.insert(0, str(ADAPTER / "tests_sglang" / "rig"))

import rig_torchvision

rig_torchvision.install()


@pytest.fixture(scope="session")
def model():
    """The tiny model's folder; its name says which version of it."""
    script = ROOT / "adapters" / "vllm" / "e2e" / "tiny_llama.py"
    version = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    folder = ROOT / "build" / f"tiny-llama-{version}"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=PATIENCE)
    return folder


@pytest.fixture(scope="session")
def transformer(model):
    """The same checkpoint in transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaForCausalLM

        return LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def _greedy(transformer):

    @functools.cache
    def follow(words, new):
        ids = torch.tensor([words])
        with torch.no_grad():
            out = transformer.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        return out[0, len(words) :].tolist()

    return lambda words, new=8: follow(tuple(words), new)


@pytest.fixture(scope="session")
def greedy():
    """``greedy(transformer)(prompt)`` gives the greedy tokens, by transformers alone."""
    return _greedy


@pytest.fixture(scope="session")
def reference(greedy, transformer):
    """``reference(prompt)`` is what has to be answered."""
    return greedy(transformer)


@pytest.fixture(scope="module")
def same(reference):
    """``same(engine, *prompts)`` runs them at once: as by transformers; the answers."""

    def run(engine, *prompts):
        answers = engine.generate(*prompts)
        assert [answer.tokens for answer in answers] == [reference(words) for words in prompts]
        return answers

    return run


@pytest.fixture(scope="module")
def start(model, tmp_path_factory):
    """Starts engines; the module's end ends those that no test has ended."""
    engines = []

    def begin(checkpoint=model, **settings):
        log = tmp_path_factory.mktemp("engine") / "log"
        engines.append(Engine(checkpoint, log, **{"enable_metrics": True} | settings))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.kill()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server
