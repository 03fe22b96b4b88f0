"""``hexkv warm``: documents are computed once, together or in steps, and then hit."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.held import planes_of
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.adapters.hf.warm.computing import Warmer
from hexkv.adapters.hf.warm.documents import Document
from hexkv.contracts.kit.cases import each
from hexkv.plugins.__main__ import main
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load

CHUNK = 16


@pytest.fixture
def folder(tmp_path, gqa):
    """A model without a tokenizer."""
    gqa.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def config(tmp_path):
    disk = {"store": "disk", "settings": {"root": str(tmp_path / "cache")}}
    wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": "8MiB"}, "tiers": [disk]}
    file = tmp_path / "hexkv.yaml"
    file.write_text(json.dumps(wanted))
    return file


@pytest.fixture
def hexkv(capsys, monkeypatch, folder, config):
    monkeypatch.delenv("HEXKV_CONFIG", raising=False)

    def call(*words):
        capsys.readouterr()  # what a fixture printed
        code = main(["warm", *map(str, words), "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return lambda *files: call("--model", folder, "--config", config, *files)


def written(path, *documents):
    path.write_text("\n".join(json.dumps(document) for document in documents))
    return path


def ids(prompt, length, seed):
    return prompt(length, seed)[0].tolist()


def test_a_document_that_was_warmed_hits_and_is_computed_once(
    hexkv, tmp_path, prompt, folder, config
):
    words = ids(prompt, 5 * CHUNK + 3, 1)
    file = written(tmp_path / "one.json", words)
    code, told, _ = hexkv(file)
    assert (code, told["known_tokens"], told["stored_tokens"]) == (0, 0, 5 * CHUNK)
    code, told, _ = hexkv(file)
    assert (code, told["known_tokens"], told["stored_tokens"]) == (0, 5 * CHUNK, 5 * CHUNK)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with build(load(config, {}), namespace_of_model(model)) as engine:
        loaded = CachedModel(model, engine).load(words)
    assert loaded.hit_tokens == 5 * CHUNK
    with torch.no_grad():
        want = DynamicCache()
        model(input_ids=torch.tensor([words]), **with_cache(model, want), use_cache=True)
    for mine, theirs in zip(planes_of(loaded.cache), planes_of(want), strict=True):
        for plane, other in zip(mine, theirs, strict=True):
            assert torch.allclose(plane, other[:, :, : 5 * CHUNK], atol=1e-5)


class Counted:
    """A model that says how much it computes at a time."""

    def __init__(self, model):
        self.calls = []
        self._hook = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, model, args, kwargs):
        self.calls.append(tuple(kwargs["input_ids"].shape))

    def __enter__(self):
        return self.calls

    def __exit__(self, *_):
        self._hook.remove()


@pytest.fixture
def warm(gqa, engine_for):
    engine = engine_for(gqa)

    def run(documents, at_once=256):
        warmer = Warmer(gqa, engine, chunk=CHUNK, at_once=at_once, progress=lambda _: None)
        with Counted(gqa) as calls:
            done = list(warmer.run([Document(str(n), d) for n, d in enumerate(documents)]))
        return {one.name: one for one in done}, calls

    return run


def test_short_documents_are_computed_together(warm, gqa, prompt, engine_for):
    """Each has the KV that it has alone, however long its neighbours are."""
    documents = [ids(prompt, length, length) for length in (40, 64, 20, 50)]
    done, calls = warm(documents)
    assert calls == [(4, 64), (1, 16)]  # the second one is to be sure
    assert [done[str(n)].stored for n in range(4)] == [32, 64, 16, 48]
    alone = CachedModel(gqa, engine_for(gqa))
    for words in documents:
        got = alone.prefill([*words, 1])
        want = gqa(input_ids=torch.tensor([[*words, 1]])).logits[0, -1]
        assert got.hit_tokens == len(words) // CHUNK * CHUNK
        assert torch.allclose(got.logits, want, rtol=0, atol=1e-4)


def test_where_neighbours_matter_each_is_computed_alone(warm, gqa, prompt, monkeypatch, caplog):
    monkeypatch.setattr(Warmer, "_same", lambda *_: False)
    done, calls = warm([ids(prompt, 40, n) for n in range(3)])
    assert calls[1:] == [(1, 32)] * 3
    assert all(one.stored == 32 for one in done.values())
    assert "each is computed alone" in caplog.text


def test_what_documents_begin_with_is_computed_once(warm, prompt):
    beginning = ids(prompt, 4 * CHUNK, 1)
    documents = [[*beginning, *ids(prompt, 2 * CHUNK, n)] for n in (2, 3, 4)]
    done, calls = warm(documents, at_once=1024)
    assert calls == [(1, 6 * CHUNK), (1, 2 * CHUNK), (1, 2 * CHUNK)]
    assert [one.known for one in done.values()] == [0, 4 * CHUNK, 4 * CHUNK]


def test_a_long_document_goes_on_where_it_was_cut(warm, prompt):
    words = ids(prompt, 10 * CHUNK, 1)
    done, calls = warm([words[: 4 * CHUNK]], at_once=2 * CHUNK)
    assert calls == [(1, 2 * CHUNK)] * 2
    done, calls = warm([words], at_once=2 * CHUNK)
    assert calls == [(1, 2 * CHUNK)] * 3
    assert (done["0"].known, done["0"].stored) == (4 * CHUNK, 10 * CHUNK)


def test_what_is_too_short_for_a_chunk_is_not_computed(warm, prompt):
    done, calls = warm([ids(prompt, CHUNK - 1, 1)])
    assert (done["0"].whole, done["0"].stored, calls) == (0, 0, [])


@each(
    ("text", "said"),
    [
        ("no JSON", "is no JSON"),
        ("[]", "token ids"),
        ("[1, 128]", "token ids"),
        ("[1, true]", "token ids"),
        ('"a text"', "has no tokenizer"),
    ],
)
def test_what_is_no_document_is_said_in_one_line(hexkv, tmp_path, text, said):
    file = tmp_path / "odd.json"
    file.write_text(text)
    code, _, err = hexkv(file)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"error: {file}: ")
    assert said in err


def test_options_that_mean_nothing_are_named(hexkv, tmp_path, config, prompt):
    file = written(tmp_path / "one.json", ids(prompt, 40, 1))
    assert "error: --dtype: 'int3'" in hexkv(file, "--dtype", "int3")[2]
    assert "error: --device: 'nowhere'" in hexkv(file, "--device", "nowhere")[2]
    assert "error: --model /nowhere" in hexkv(file, "--model", "/nowhere")[2]
    config.write_text(json.dumps({"tiers": [{"store": "memory"}]}))
    assert "error: --config: every tier is memory" in hexkv(file)[2]


def test_documents_are_texts_and_conversations_too(hexkv, tmp_path, folder, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"w{n}": n for n in range(128)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    chat = "{% for m in messages %}w1 {{ m['content'] }} {% endfor %}"
    PreTrainedTokenizerFast(tokenizer_object=words, chat_template=chat).save_pretrained(folder)
    text = " ".join(f"w{n}" for n in range(100, 120))
    file = written(
        tmp_path / "all.jsonl",
        text,
        {"text": f"{text} w7"},
        {"messages": [{"role": "user", "content": text}]},
        [*range(20, 40)],
    )
    code, told, _ = hexkv(file)
    assert (code, [one["tokens"] for one in told["documents"]]) == (0, [20, 21, 21, 20])
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(text)
    assert main(["tokens", "--model", str(folder), str(prompt)]) == 0
    assert json.loads(capsys.readouterr().out) == [*range(100, 120)]
