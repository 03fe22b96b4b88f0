"""The experiment of blending in vLLM: a forward pass of a connector's own, over paged KV."""

import os

import pytest

from engines.vllm.vllm_engines import ROOT, Engine, agree, prompt

pytestmark = pytest.mark.thorough

EXAMPLE = ROOT / "examples" / "blending-vllm"
SEPARATOR = 4095
LENGTHS = (200, 333, 128, 90)
QUESTION = 41
SALT = "approximate:"


def segment(name, tokens):
    """Words that end with the separator, and have none before."""
    words = [word % 4094 + 1 for word in prompt(f"segment {name}", tokens - 1)]
    return [*words, SEPARATOR]


def order(*which, question="asked"):
    """A prompt of segments, and a question of no segment."""
    parts = [word for name in which for word in segment(name, LENGTHS[name])]
    return parts + [word % 4094 + 1 for word in prompt(question, QUESTION)]


@pytest.fixture
def blending(model, tmp_path):
    """``blending(ratio, **settings)`` starts an engine that blends; the test's end ends it."""
    engines = []

    def begin(ratio, extension="blending_vllm.connector.BlendingWorker", **settings):
        transfer = {
            "kv_connector": "BlendingConnector",
            "kv_connector_module_path": "blending_vllm.connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"separator": [SEPARATOR], "ratio": ratio},
        }
        path = os.pathsep.join(filter(None, [str(EXAMPLE), os.environ.get("PYTHONPATH")]))
        if extension:
            settings["worker_extension_cls"] = extension
        engine = Engine(
            model, tmp_path / "log", transfer=transfer, env={"PYTHONPATH": path}, **settings
        )
        engines.append(engine)
        return engine

    yield begin
    for engine in engines:
        engine.kill()


ORDERS = [(0, 1, 2, 3), (3, 1, 0), (1, 0, 3, 2), (2, 2, 1), (1, 3, 0, 2)]


def spans(orders):
    return [sum(LENGTHS[name] for name in which) for which in orders]


@pytest.mark.parametrize("ranks", [1, 2])
def test_all_tokens_recomputed_give_what_no_connector_gives(blending, reference, ranks):
    """In any order, in crowds, in steps of fewer tokens than a prompt has; from many ranks, too."""
    two = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"} if ranks == 2 else {}
    engine = blending(1.0, max_num_batched_tokens=512, **two)
    prompts = [order(*which, question=f"asked {which}") for which in ORDERS]
    for crowd in (prompts[:1], prompts):
        answers = engine.generate(*crowd)
        assert agree(answers, reference(*crowd))
        assert [answer.cached for answer in answers] == spans(ORDERS)[: len(crowd)]


def test_approximate_kv_is_met_under_a_salt_of_its_own_alone(blending, reference):
    engine = blending(0.0, enable_prefix_caching=True)
    prompts = [order(*which) for which in ORDERS]
    exact = reference(*prompts)
    assert agree(engine.generate(*prompts), exact)
    engine.reset()
    blended = engine.generate(*prompts, salt=SALT + "a")
    assert [answer.cached for answer in blended] == spans(ORDERS)
    off = [abs(a.logprobs[0] - b.logprobs[0]) for a, b in zip(blended, exact, strict=True)]
    assert max(off) > 1e-3, "this model's segments lean on nothing, so it shows nothing"
    assert agree(engine.generate(*prompts), exact)
    assert agree(engine.generate(*prompts, salt="a tenant's"), exact)
    assert engine.said("computed in full")


def test_without_its_extension_nothing_is_blended_and_nothing_breaks(blending, reference):
    engine = blending(0.0, extension="")
    prompts = [order(*which) for which in ORDERS[:2]]
    assert agree(engine.generate(*prompts), reference(*prompts))
    assert engine.said("start vLLM with --worker-extension-cls")
