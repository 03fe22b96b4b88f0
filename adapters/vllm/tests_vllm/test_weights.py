"""Under vLLM's scheduler and executor, weights change: KV of others is never loaded or kept."""

import random
import re
from contextlib import closing
from pathlib import Path

import pytest
import vllm

from depth import thorough
from engines.vllm.vllm_engines import PATIENT
from engines.vllm.vllm_offloaded import Offloaded
from engines.vllm.vllm_toy import alone
from hexkv.adapters.vllm.configuration.weights import ARGUMENTS, CHANGING, KEEPING
from processes import until

WAYS = ["sync", "async", "layerwise", "offloading"]


def prompt(seed, count):
    return random.Random(seed).choices(range(1000), k=count)


@pytest.fixture(params=WAYS)
def serve(request, start, model, tmp_path):
    """``serve()``: an engine on the disk of all that it started before."""
    disk = {"store": "disk", "settings": {"root": str(tmp_path / "cache")}}
    made = []

    def begin():
        if request.param != "offloading":
            return start(tiers=[disk], connector={"loading": request.param}, prefix_caching=False)
        hexkv = {"pool": {"bytes": "4MiB"}, "tiers": [disk], "socket_dir": str(tmp_path)}
        made.append(Offloaded(model, hexkv | PATIENT))
        return made[-1]

    yield begin
    for toy in made:
        toy.close()


def rest(toy):
    """Until nothing is under way, and what vLLM stores has been handed over."""
    toy.run()
    until(lambda: toy._rest() or not getattr(toy, "busy", False))


def ask(toy, name, words, weights=""):
    """How many of the tokens are loaded; the answer is that of *weights*."""
    rest(toy)
    toy.forget()
    toy.add(name, words)
    rest(toy)
    assert toy.engine.flush(60)
    assert toy.answers()[name] == alone(words, 4, weights)
    return toy.cached[name]


def test_kv_of_weights_that_were_replaced_is_not_used_and_that_of_others_not_kept(serve, tmp_path):
    one, other = prompt(1, 100), prompt(2, 100)
    with closing(serve()) as toy:
        assert ask(toy, "first", one) == 0
        assert ask(toy, "hit", one) == 96
        toy.call("reload_weights", weights_path=str(tmp_path))
        for words in (one, other):
            for turn in range(2):
                assert ask(toy, f"{words[0]}.{turn}", words, f" {tmp_path}") == 0
    with closing(serve()) as toy:
        assert ask(toy, "other", other) == 0, "what other weights computed is not there"
        assert ask(toy, "hit", one) == 96, "what the first ones computed is"


def test_weights_that_come_back_after_a_sleep_find_what_they_left(serve):
    toy, words = serve(), prompt(1, 100)
    ask(toy, "first", words)
    for level in (1, 2):
        toy.forget()
        assert toy.scheduler.reset_prefix_cache(reset_connector=True)
        toy.call("sleep", level=level)
        toy.call("wake_up", tags=["weights"])
        if level == 2:
            toy.call("reload_weights")
        toy.call("wake_up", tags=["kv_cache"])
        assert ask(toy, f"after level {level}", words) == 96


def test_other_weights_that_computed_in_between_end_the_cache(serve, tmp_path):
    toy, words = serve(), prompt(1, 100)
    ask(toy, "first", words)
    toy.call("reload_weights", weights_path=str(tmp_path))
    toy.add("between", words)
    rest(toy)
    toy.call("reload_weights", weights_path=str(toy.executor.vllm_config.model_config.model))
    assert ask(toy, "after", words) == 0


def test_what_a_callable_does_to_weights_is_seen(serve):
    def merge(worker):
        worker._toy.weights = " merged"

    toy, words = serve(), prompt(1, 100)
    ask(toy, "first", words)
    toy.executor.collective_rpc(lambda worker: worker.get_model())
    assert ask(toy, "looked at", words) == 96
    toy.executor.collective_rpc(merge)
    assert ask(toy, "merged", words, " merged") == 0


def test_somebody_has_decided_about_each_call_that_vllm_makes_to_its_workers():
    """Red under a new vLLM: does the call change weights? Put it into a list of ``weights``."""
    source = Path(vllm.__file__).parent
    files = [file for part in ("v1", "entrypoints") for file in (source / part).rglob("*.py")]
    called = re.compile(r'collective_rpc\(\s*"(\w+)"')
    names = {name for file in files for name in called.findall(file.read_text())}
    before = {"init_device", "init_worker", "update_environment_variables"}
    by_effect = {"apply_model"}
    assert "sleep" in names
    assert names - KEEPING - CHANGING - set(ARGUMENTS) - before - by_effect == set()


@pytest.mark.parametrize("seed", [0, *thorough(*range(1, 8))])
def test_whenever_weights_change_requests_that_come_later_get_answers_of_the_new(
    serve, seed, tmp_path
):
    """Also amid lookups, loads and stores. What vLLM itself carries over is of both."""
    rng = random.Random(seed)
    heads = [prompt(100 + i, 96) for i in range(3)]
    for life in range(3):
        with closing(serve()) as toy:
            first = str(toy.executor.vllm_config.model_config.model)
            weights, answered = "", {}
            for era in range(4):
                for i in range(rng.randint(3, 6)):
                    name = f"{life}.{era}.{i}"
                    words = rng.choice(heads) + prompt(rng.randint(0, 3), rng.randint(1, 40))
                    toy.add(name, words, count=rng.randint(1, 12))
                    answered[name] = words, weights
                    for _ in range(rng.randint(0, 4)):
                        toy.step()
                if isinstance(toy, Offloaded):  # whose blocks are found in vLLM's own cache
                    rest(toy)
                    toy.forget()
                for name in [*answered]:
                    if not toy.requests[name].is_finished():
                        del answered[name]
                if era < 3:
                    place = rng.choice([first, str(tmp_path), str(tmp_path / "else")])
                    toy.call("reload_weights", weights_path=place)
                    weights = toy.weights
            rest(toy)
            for name, (words, of) in answered.items():
                count = toy.requests[name].max_tokens
                assert toy.answers()[name] == alone(words, count, of), name
            assert toy.engine.flush(60)
