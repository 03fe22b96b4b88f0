"""One model, what transformers says it answers, and the engines that tests start."""

import hashlib
import subprocess
import sys
import warnings

import pytest
import torch

from redis_servers import RedisServer
from sglang_engines import ADAPTER, ROOT, Engine

sys.path.insert(0, str(ADAPTER / "tests_sglang" / "rig"))

import rig_torchvision

rig_torchvision.install()


@pytest.fixture(scope="session")
def model():
    """The tiny model's folder; its name says which version of it."""
    script = ROOT / "adapters" / "vllm" / "e2e" / "tiny_llama.py"
    version = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    folder = ROOT / "build" / f"tiny-llama-{version}"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=120)
    return folder


@pytest.fixture(scope="session")
def transformer(model):
    """The same checkpoint in transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaForCausalLM

        return LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def reference(transformer):
    """The greedy tokens of prompts, by transformers alone."""
    known = {}

    def tokens(words, new=8):
        key = tuple(words)
        if key not in known:
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
            known[key] = out[0, len(words) :].tolist()
        return known[key]

    return tokens


@pytest.fixture(scope="session")
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

    def begin(**settings):
        log = tmp_path_factory.mktemp("engine") / "log"
        engines.append(Engine(model, log, **settings))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.kill()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server
