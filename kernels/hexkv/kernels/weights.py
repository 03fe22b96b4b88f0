"""The weights of a checkpoint: one digest that every host of it can compute.

The digest is of the tensors, not of the files that they lie in: of the name, dtype, shape and bytes
of each. One file or many, in any order, with any metadata: the digest is the same. Files of other
formats are digested as files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

PIECE = 32 << 10
"""Bytes that are read in one place."""

WHOLE = 2 << 30
"""A checkpoint of up to this many bytes is read whole; of larger ones, about as many."""

_LONGEST_HEADER = 100 << 20
"""Bytes of a safetensors header that the format allows."""

_THREADS = 8

_OPAQUE = {".bin", ".pt", ".pth", ".gguf", ".npz", ".py"}
"""Weights whose tensors only a host can read, and a model's own code."""

_UNRELATED = {
    "added_tokens.json",
    "chat_template.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "trainer_state.json",
    "vocab.json",
}
"""Configurations that decide the tokens of requests, not their KV."""

_INDEX = ".safetensors.index.json"

_RESAVED = {
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
"""Fields of a configuration that a copy changes, and KV does not depend on.

The dtype that a host computes in is part of the layout, that of the weights part of each tensor.
"""


@dataclass(frozen=True, slots=True, order=True)
class _Stretch:
    """Bytes in a file that are digested as one: a tensor, or a whole file."""

    name: str
    """Of the tensor or the file, its dtype and shape."""

    size: int
    file: Path
    start: int

    def digest(self, stride: int) -> str:
        """Return a digest of one piece in every *stride*, and of the last one."""
        digest = sha256(f"{self.name} {self.size}\n".encode())
        with self.file.open("rb", buffering=0) as file:
            for at in _places(self.size, stride):
                wanted = min(PIECE if stride > 1 else _BLOCK, self.size - at)
                found = os.pread(file.fileno(), wanted, self.start + at)
                if len(found) != wanted:
                    raise OSError(f"{self.file}: ends within {self.name}")
                digest.update(found)
        return digest.hexdigest()


_BLOCK = 1 << 20
"""Bytes read at once where all are."""


def _places(size: int, stride: int) -> Iterator[int]:
    """Yield where pieces begin."""
    if stride == 1:
        yield from range(0, size, _BLOCK)
        return
    yield from range(0, size, PIECE * stride)
    last = (size - 1) // PIECE
    if size and last % stride:
        yield last * PIECE


def digest_of(path: Path) -> str:
    """Return a digest of a checkpoint's tensors and configurations.

    Up to :data:`WHOLE` bytes of weights are read whole: one changed bit is another digest. Of a
    larger checkpoint, each tensor's first piece of :data:`PIECE` bytes is read, every *n*-th from
    there, and the last; *n* is the size of the checkpoint divided by :data:`WHOLE`, rounded up. A
    change between two pieces, of at most ``(n - 1) * PIECE`` bytes, is not seen.

    Args:
        path: a checkpoint's folder, or its only file.

    Raises:
        OSError: a file cannot be read, or an index names one that does not exist.
    """
    digest = sha256(b"hexkv weights 1\n")
    if not path.is_dir():
        stretches = list(_stretches(path))
    else:
        stretches = [stretch for file in _weights(path) for stretch in _stretches(file)]
        for file in sorted(path.glob("*.json")):
            if file.name not in _UNRELATED and not file.name.endswith(".index.json"):
                digest.update(f"{file.name} {_configuration(file)}\n".encode())
    stretches.sort()
    stride = max(1, -(-sum(stretch.size for stretch in stretches) // WHOLE))
    digest.update(f"1 in {stride}\n".encode())
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        # Equal tensors of two files are in an order that does not depend on the files.
        found = threads.map(lambda stretch: (stretch.name, stretch.digest(stride)), stretches)
        for name, of_bytes in sorted(found):
            digest.update(f"{name} {of_bytes}\n".encode())
    return f"weights-{digest.hexdigest()[:32]}"


def stamp_of(path: Path) -> str:
    """Return a digest of the places of a checkpoint's files and of their times; reads no tensor.

    It stays the same for as long as :func:`digest_of` does, and changes when a file that is read
    there is written, replaced, added or removed: inode, size and both times count, including the
    time of the inode's last change, which no copy sets back.

    Args:
        path: a checkpoint's folder, or its only file.

    Raises:
        OSError: a file cannot be looked at, or an index names one that does not exist.
    """
    digest = sha256()
    for file in _read_files(path):
        found = file.stat()
        known = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        digest.update(f"{file} {known}\n".encode())
    return digest.hexdigest()[:32]


def _read_files(path: Path) -> list[Path]:
    """Return all files that affect the digest of *path*."""
    if not path.is_dir():
        return [path]
    settings = [file for file in sorted(path.glob("*.json")) if file.name not in _UNRELATED]
    return [*_weights(path), *settings]


def tensor_files(directory: Path) -> list[Path]:
    """Return a checkpoint's safetensors files: those in its folder, and those that an index names.

    Raises:
        OSError: the index cannot be read.
    """
    found = set(directory.glob("*.safetensors"))
    for index in directory.glob(f"*{_INDEX}"):
        read = _json(index)
        weights = read.get("weight_map") if isinstance(read, dict) else None
        if isinstance(weights, dict):
            found.update(directory / str(name) for name in weights.values())
    return sorted(found)


def folder_of(name: str, revision: str | None = None, cache: str | None = None) -> Path | None:
    """Return the folder that a host loads *name* from, if it is on this machine.

    Args:
        name: a folder, or a model's name on the Hugging Face hub, for its local copy.
        revision: branch, tag or commit there.
        cache: where the host keeps copies, if not at the usual place.
    """
    if not name:
        return None
    if Path(name).is_dir():
        return Path(name)
    try:
        hub = import_module("huggingface_hub")
        found = hub.try_to_load_from_cache(name, "config.json", cache_dir=cache, revision=revision)
    except (ImportError, ValueError):  # no name that the hub could know
        return None
    return Path(found).parent if isinstance(found, str) else None


def _weights(directory: Path) -> Iterator[Path]:
    yield from tensor_files(directory)
    yield from (
        file for file in sorted(directory.iterdir()) if file.suffix in _OPAQUE and file.is_file()
    )


def _stretches(file: Path) -> Iterator[_Stretch]:
    """Yield the tensors of a file, or the file, if its format does not list them."""
    size = file.stat().st_size
    tensors = _tensors(file, size) if file.suffix == ".safetensors" else None
    if tensors is None:
        yield _Stretch(f"file {file.name}", size, file, 0)
    else:
        yield from tensors


def _tensors(file: Path, size: int) -> list[_Stretch] | None:
    """Return the tensors of a safetensors file; ``None`` if it is none."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 0 < length <= min(_LONGEST_HEADER, size - 8):
            return None
        try:
            header = json.loads(opened.read(length))
            return [
                _tensor(name, entry, file, 8 + length, size)
                for name, entry in header.items()
                if name != "__metadata__"
            ]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None


def _tensor(name: str, entry: dict[str, Any], file: Path, base: int, size: int) -> _Stretch:
    start, end = map(int, entry["data_offsets"])
    if not 0 <= start <= end <= size - base:
        raise ValueError(f"{name} lies outside of the file")
    shape = [int(length) for length in entry["shape"]]
    text = json.dumps([name, str(entry["dtype"]), shape])
    return _Stretch(text, end - start, file, base + start)


def _configuration(file: Path) -> str:
    """Return the content of a configuration, without fields that a copy of it changes."""
    read = _json(file)
    if not isinstance(read, dict):
        return sha256(file.read_bytes()).hexdigest()
    kept = {name: value for name, value in read.items() if name not in _RESAVED}
    return json.dumps(kept, sort_keys=True)


def _json(file: Path) -> object:
    try:
        return json.loads(file.read_bytes())
    except ValueError:
        return None
