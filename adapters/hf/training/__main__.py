"""``python -m training text|recall DIRECTORY``, run in ``adapters/hf``: train and save."""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import torch

from training import recall, text
from training.corpus import standard_library


def main() -> None:
    parser = argparse.ArgumentParser(prog="training", description=__doc__)
    parser.add_argument("which", choices=("text", "recall"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    recipe: dict[str, object] = {"torch": torch.__version__, "python": platform.python_version()}
    if asked.which == "text":
        corpus = standard_library()
        learned, result = text.learn(corpus)
        recipe |= {"corpus_sha256": corpus.digest, "corpus_bytes": len(corpus.train)}
        recipe["plan"] = asdict(text.PLAN)
    else:
        learned, result = recall.learn()
        recipe["plan"] = asdict(recall.PLAN)
    learned.bfloat16().save_pretrained(asked.directory)
    weights = (asked.directory / "model.safetensors").read_bytes()
    recipe |= result | {"weights_sha256": sha256(weights).hexdigest()}
    (asked.directory / "recipe.json").write_text(json.dumps(recipe, indent=2) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
