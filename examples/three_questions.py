"""Three questions about one document: only the first has to read it.

Needs hexkv-hf. Nothing is downloaded: the model is a small one that comes along, and reads bytes.

    python examples/three_questions.py
"""

import tempfile
from importlib.resources import files

from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.adapters.hf.trained import trained
from hexkv.api import open_cache

DOCUMENT = files("hexkv.ports").joinpath("store.py").read_text(encoding="utf-8")[:2048]
QUESTIONS = ("What is a sink?", "Who closes a store?", "What may a scan leave out?")

model = trained("text")

with tempfile.TemporaryDirectory() as directory:
    config = {
        "pool": {"bytes": "64MiB"},
        "tiers": [{"store": "memory"}, {"store": "disk", "settings": {"root": directory}}],
    }
    with open_cache(config, namespace=namespace_of_model(model)) as cache:
        cached = CachedModel(model, cache)
        for question in QUESTIONS:
            prompt = list(f"{DOCUMENT}\n\n{question}\n".encode())
            answer = cached.generate(prompt, max_new_tokens=8)
            prefill = answer.prefill
            print(
                f"{question:30} {prefill.hit_tokens:5} of {len(prompt)} tokens from the cache,"
                f" first token after {prefill.load_seconds + prefill.compute_seconds:.3f} s"
            )
