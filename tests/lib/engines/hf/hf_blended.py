"""Which classes of transformers can be blended, and the table of it.

``python -m engines.hf.hf_blended``, over tests/lib, writes it to ``docs/transformers.md``.
"""

from __future__ import annotations

import re
import warnings

import torch

from engines.hf.blended_prompts import empty, full, off
from engines.hf.hf_models import NOT_BUILT, PAGE, SAME, table
from engines.hf.hf_models import documented as cached
from engines.hf.tiny_models import VOCABULARY, tiny_model
from hexkv.adapters.hf.blending.blender import Blender
from hexkv.adapters.hf.blending.plan import BlendPlan
from hexkv.ports import LayoutMismatch

BLENDED = SAME
"""What the table calls them, too."""

_START, _END = "<!-- blended -->\n", "<!-- /blended -->"


def verdict(kind: str) -> str:
    """``supported``, or why not.

    Raises:
        AssertionError: what is blended is not what the model computes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own, about sizes as small as these
        model = tiny_model(kind)
        try:
            blender = Blender(model)
        except LayoutMismatch as refusal:
            said = str(refusal).removeprefix(f"{type(model).__name__} ")
            return "refused: " + re.sub(r"( of)? layer \d+|: moved by them.*", "", said)
        with blender:
            _try(blender)
    return BLENDED


def _try(blender: Blender) -> None:
    """Reuse segments and compute everything anew; reuse exact KV, and compute some of it."""
    words = torch.randint(3, VOCABULARY, (60,), generator=torch.Generator().manual_seed(1))
    tokens = words.tolist()
    wanted = full(blender.model, tokens)
    limit = 1e-4 * float(wanted.abs().max().clamp_min(1.0))
    room = empty(blender, len(tokens))
    room.fill(blender.compute(tokens[:5]))
    runs = [
        blender.place(room, start, blender.compute(tokens[start:end]))
        for start, end in ((5, 20), (23, 50))
    ]
    made = blender.blend(tokens, room, prefix=5, reused=runs, plan=BlendPlan(1, 1.0))
    assert off(made.logits, wanted) <= limit
    room.fill(blender.compute(tokens))
    made = blender.blend(tokens, room, prefix=5, reused=runs, plan=BlendPlan(0, 0.3))
    assert made.counts.reused == 29
    assert off(made.logits, wanted) <= limit


def kinds() -> list[str]:
    """Those whose KV is cached, as the page says."""
    return [kind for kind, said in cached().items() if said == SAME and kind not in NOT_BUILT]


def documented() -> dict[str, str]:
    """The verdicts that the page gives, by kind."""
    inside = PAGE.read_text().split(_START)[1].split(_END)[0]
    rows = re.findall(r"^\| (.+?) \| (`.+`) \|$", inside, flags=re.MULTILINE)
    return {kind: said for said, named in rows for kind in re.findall(r"`([^`]+)`", named)}


def main() -> None:
    """Write the table of all."""
    torch.set_num_threads(1)
    before, rest = PAGE.read_text().split(_START)
    text = table({kind: verdict(kind) for kind in kinds()})
    PAGE.write_text(f"{before}{_START}{text}\n{_END}{rest.split(_END)[1]}")


if __name__ == "__main__":
    main()
