"""What becomes of each causal class of transformers under the cache, and the table of it.

``python -m engines.hf.hf_models``, over tests/lib, writes it to ``docs/transformers.md``, and
``python -m engines.hf.hf_models KIND...`` prints what becomes of some.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from engines.hf.tiny_models import KINDS, VOCABULARY, tiny_model
from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import LayoutMismatch

PAGE = Path(__file__).parents[4] / "docs" / "transformers.md"
SAME = "supported"
CHUNK = 16
NEW = 6

NOT_BUILT: Mapping[str, str] = {
    "gemma3n": "needs Pillow and timm for its vision tower; `gemma3n_text` is built",
}
"""Kinds that are not tried here, with what keeps their class from being built."""

_CONFIG = {
    "pool": {"bytes": 1 << 24, "settings": {"huge_pages": False}},
    "chunk": {"size": CHUNK},
    "tiers": [{"store": "memory"}],
    "deadlines": {"lookup": 60.0, "retrieve": 60.0, "store": 60.0},
}


def verdict(kind: str) -> str:
    """``supported``, or why not; ``not tried`` for :data:`NOT_BUILT`.

    Raises:
        AssertionError: the cache gives other logits or tokens than the model without it.
    """
    if kind in NOT_BUILT:
        return f"not tried: {NOT_BUILT[kind]}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own, about sizes as small as these
        model = tiny_model(kind)
        try:
            namespace = namespace_of_model(model, weights=kind)
        except LayoutMismatch as refusal:
            return _reason(model, refusal)
        with build(load(environ={}, overrides=_CONFIG), namespace) as engine:
            cached = CachedModel(model, engine)
            _try(model, cached)
            assert cached.namespace == namespace, "running the model is taken for other weights"
    return SAME


def _reason(model: PreTrainedModel, refusal: LayoutMismatch) -> str:
    """What *refusal* says of all models like it."""
    said = str(refusal).removeprefix(f"{type(model).__name__} ")
    said = re.sub(r" \(\w*(Error|Exception): .*", "", said, flags=re.DOTALL)
    said = re.sub(r"KV of layer \d+ changes by [\d.]+%", "KV changes", said)
    return f"refused: {said}"


def _try(model: PreTrainedModel, cached: CachedModel) -> None:
    """Prompts with one beginning, without the cache and with it, and a second turn."""
    generator = torch.Generator().manual_seed(9)
    # Without the tokens for padding, beginnings and ends, which some classes treat apart.
    words = torch.randint(3, VOCABULARY, (180,), generator=generator).tolist()
    first, prompt, turn = words[:120], words[:100] + words[120:140], words[140:]

    _same(cached.prefill(first).logits, _without(model, first))
    answer = cached.generate(prompt, NEW)
    assert answer.prefill.hit_tokens == 100 // CHUNK * CHUNK
    _same(answer.prefill.logits, _without(model, prompt))
    said = list(prompt)
    for token in answer.tokens:
        assert token == int(_without(model, said).argmax())
        said.append(token)

    cached.save(said[:-1], answer.prefill.cache)
    again = cached.prefill(said + turn)
    assert again.hit_tokens == (len(said) - 1) // CHUNK * CHUNK
    _same(again.logits, _without(model, said + turn))

    for beams in (1, 3):
        loaded = cached.load(prompt, sequences=beams)
        assert loaded.hit_tokens == len(prompt) // CHUNK * CHUNK
        cache = {**with_cache(model, loaded.cache), "use_cache": True}
        from_cache = _generate(model, prompt, beams, **cache)
        without = _generate(model, prompt, beams, use_cache=False)
        assert from_cache == without, f"{beams} beams"

    # The control: other KV, and the logits are others.
    spoilt = cached.load(prompt)
    for layer in spoilt.cache.layers:
        for plane in (layer.keys, layer.values):
            plane.copy_(torch.randn(plane.shape, generator=generator) * plane.std())
    with torch.no_grad():
        rest = torch.tensor([prompt[spoilt.hit_tokens :]])
        wrong = model(input_ids=rest, **with_cache(model, spoilt.cache)).logits[0, -1]
    assert _difference(wrong, _without(model, prompt)) > 0.03


def _without(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]


def _generate(model: PreTrainedModel, tokens: list[int], beams: int, **cache: object) -> list:
    ids = torch.tensor([tokens])
    answers = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW,
        num_beams=beams,
        num_return_sequences=beams,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **cache,
    )
    return answers.tolist()


def _same(logits: torch.Tensor, wanted: torch.Tensor) -> None:
    assert _difference(logits, wanted) < 1e-3


def _difference(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((logits - wanted).abs().max() / wanted.abs().max().clamp_min(1.0))


def table(verdicts: Mapping[str, str]) -> str:
    """A table in Markdown: each verdict with the kinds that it is of."""
    groups: dict[str, list[str]] = defaultdict(list)
    for kind in sorted(verdicts):
        groups[verdicts[kind]].append(f"`{kind}`")
    ordered = sorted(groups, key=lambda said: (said != SAME, said.startswith("not tried"), said))
    rows = [f"| {said} | {', '.join(groups[said])} |" for said in ordered]
    return "\n".join(["| | `model_type` |", "| --- | --- |", *rows])


def documented() -> dict[str, str]:
    """The verdicts that the page gives, by kind."""
    rows = re.findall(r"^\| (.+?) \| (`.+`) \|$", _parts()[1], flags=re.MULTILINE)
    return {kind: said for said, kinds in rows for kind in re.findall(r"`([^`]+)`", kinds)}


def _parts() -> tuple[str, str, str]:
    before, rest = PAGE.read_text().split("<!-- models -->\n")
    inside, after = rest.split("<!-- /models -->")
    return before, inside, after


def main(kinds: Iterable[str]) -> None:
    """Print the verdicts of some *kinds*, or write the table of all."""
    torch.set_num_threads(1)
    chosen = list(kinds)
    if chosen:
        for kind in chosen:
            sys.stdout.write(f"{kind}: {verdict(kind)}\n")
        return
    before, _, after = _parts()
    before = re.sub(r"transformers [\d.]+:", f"transformers {transformers.__version__}:", before)
    text = table({kind: verdict(kind) for kind in KINDS})
    PAGE.write_text(f"{before}<!-- models -->\n{text}\n<!-- /models -->{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
