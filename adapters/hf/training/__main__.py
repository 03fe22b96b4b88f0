"""``python -m training MODEL DIRECTORY``, run in ``adapters/hf``: train and save.

*MODEL* is ``text``, ``recall`` or ``alias``, which come along, or a judge of serdes.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path

import torch
from transformers import PreTrainedModel

from training import alias, recall, text
from training.corpus import standard_library
from training.judges import CHOOSING, JUDGES


def main() -> None:
    parser = argparse.ArgumentParser(prog="training", description=__doc__)
    parser.add_argument("which", choices=("text", "recall", "alias", *JUDGES))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, help="of weights and data; another than the model's")
    parser.add_argument("--steps", type=int, help="fewer than planned")
    parser.add_argument("--keys", type=int, help="another number of them, not for text")
    parser.add_argument("--values", type=int, help="likewise")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.which in JUDGES:
        _judge(asked.which, asked.directory, asked.steps)
        return
    scripts = {"text": text, "recall": recall, "alias": alias}[asked.which]
    seed = scripts.SEED if asked.seed is None else asked.seed
    plan = scripts.PLAN if asked.steps is None else replace(scripts.PLAN, steps=asked.steps)
    recipe: dict[str, object] = {"torch": torch.__version__, "python": platform.python_version()}
    recipe |= {"seed": seed, "plan": asdict(plan)}
    if asked.which == "text":
        corpus = standard_library()
        learned, result = text.learn(corpus, seed, plan)
        recipe |= {"corpus_sha256": corpus.digest, "corpus_bytes": len(corpus.train)}
    else:
        lists = recall if asked.which == "recall" else alias
        shipped = lists.VOCABULARY
        vocabulary = replace(
            shipped, keys=asked.keys or shipped.keys, values=asked.values or shipped.values
        )
        learned, result = lists.learn(seed, vocabulary, plan)
        recipe["vocabulary"] = asdict(vocabulary)
    _save(learned, asked.directory, recipe | result)


def _judge(name: str, directory: Path, steps: int | None) -> None:
    judge = JUDGES[name] if steps is None else JUDGES[name].shortened(steps)
    learned, result = judge.learn()
    recipe: dict[str, object] = {"torch": torch.__version__, "python": platform.python_version()}
    recipe |= {"judge": name, "half": "choosing" if name in CHOOSING else "judging"}
    recipe |= {"seed": judge.seed, "plan": asdict(judge.plan)}
    recipe["weights"] = sum(parameter.numel() for parameter in learned.parameters())
    _save(learned, directory, recipe | result)


def _save(learned: PreTrainedModel, directory: Path, recipe: dict[str, object]) -> None:
    learned.bfloat16().save_pretrained(directory)
    weights = (directory / "model.safetensors").read_bytes()
    recipe["weights_sha256"] = sha256(weights).hexdigest()
    (directory / "recipe.json").write_text(json.dumps(recipe, indent=2) + "\n")
    print(json.dumps(recipe))


if __name__ == "__main__":
    main()
