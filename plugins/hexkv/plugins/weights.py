"""Which weights a directory holds, without reading all of them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

_SAMPLES = 64
"""Places that are looked at in each file, beside its beginning and its end."""

_SAMPLE_BYTES = 4096
_HEAD_BYTES = 1 << 20
"""Names, types and shapes of the tensors come first in a safetensors file."""

_KINDS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json"}
_UNRELATED = {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}


def digest_of(directory: Path) -> str:
    """A digest of names, sizes and samples of the weights' and configurations' files.

    Weights that were trained or made apart differ in it for sure. Two that differ in a few rows
    of one matrix only need a ``revision`` that says so.

    Raises:
        OSError: a file cannot be read.
    """
    digest = sha256()
    for path in sorted(directory.iterdir()):
        if path.suffix not in _KINDS or path.name in _UNRELATED or not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"\n{path.name} {size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_HEAD_BYTES))
            for sample in range(1, _SAMPLES + 1):
                file.seek(max(0, size * sample // _SAMPLES - _SAMPLE_BYTES))
                digest.update(file.read(_SAMPLE_BYTES))
    return f"files-{digest.hexdigest()[:32]}"
