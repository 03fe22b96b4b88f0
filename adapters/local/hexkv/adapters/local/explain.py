"""``hexkv explain``: how much of a prompt a directory holds, by identity, and where it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hexkv.adapters.local._check import FrameReader
from hexkv.adapters.local.survey import Contents, frame_summary
from hexkv.plugins.cli.output import (
    CalledWrongly,
    Json,
    PromptFile,
    installed,
    named,
    new_app,
    print_json,
    print_table,
    run_app,
)
from hexkv.plugins.composition.identity import expected_fields
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.algorithms import frame_codec
from hexkv.plugins.observing.described import (
    Difference,
    differing,
    fields_of,
    hasher_of,
    model_and_layout,
    pack,
    tokens_in,
)
from hexkv.ports import (
    AdapterUnavailable,
    ChunkKey,
    ConfigError,
    CorruptFrame,
    HexKVError,
)


@dataclass(frozen=True, slots=True)
class _Answer:
    """How much of the prompt the directory holds under one identity."""

    identity: str
    described: Mapping[str, object]
    chunks: int = 0
    hit_chunks: int = 0
    hit_tokens: int = 0

    first_miss: tuple[int, int, int] | None = None
    """Index, start and end of the first chunk that is missing or damaged."""

    why: str = ""
    damaged: int = 0
    """Of the prompt's chunks, those that are damaged."""

    differs: tuple[Difference, ...] = ()
    """From the configuration."""

    @property
    def full(self) -> bool:
        return bool(self.hit_chunks) and not self.why and not self.differs


class _Directory:
    """The content of a directory, by key."""

    def __init__(self, root: Path, codec: FrameReader, verify: bool) -> None:
        contents: Contents = frame_summary(root, codec)
        self._root = root
        self._codec = codec if verify else None
        self._frames = {header.key: path for path, header in contents.frames}
        self._damaged = {Path(path).stem: reason for path, reason in contents.damaged}
        self.identities = sorted({header.identity for _, header in contents.frames})

    def lacks(self, key: ChunkKey) -> str:
        """Return why a chunk cannot be read; empty if it can."""
        path = self._frames.get(key)
        if path is None:
            reason = self._damaged.get(key.hex())
            return "absent" if reason is None else f"damaged: {reason}"
        if self._codec is not None:
            try:
                self._codec.open(memoryview((self._root / path).read_bytes()), key)
            except CorruptFrame as error:
                return f"damaged: {error}"
            except OSError as error:
                return f"damaged: cannot be read: {error.strerror}"
        return ""


def explain(
    directory: Annotated[Path, typer.Option("--dir", help="Of a disk store, or any of frames.")],
    tokens: PromptFile = "",
    former: Annotated[str, typer.Argument(metavar="PROMPT", hidden=True)] = "",
    models: Annotated[
        list[str] | None, typer.Option("--identity", help="Only this model. May be repeated.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A configuration to compare the identities with.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the prompt's chunks, payloads included.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say how much of a prompt a directory holds. Exit code 0 for all its chunks, else 1."""
    try:
        if bool(tokens) == bool(former):
            raise CalledWrongly("--tokens: give the file of the prompt's token ids once")
        with named("--tokens"):
            packed = pack(tokens_in(tokens or former))
        with named("--config"):
            expected = None if config is None else expected_fields(load(config))
        with named("--dir"):
            place = _Directory(directory, frame_codec(installed(), "crc32"), verify)
        answers = [_answer(text, packed, place, expected) for text in place.identities]
    except HexKVError as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error
    if models:
        answers = [a for a in answers if a.described.get("model") in models]
    answers.sort(key=lambda a: (len(a.differs), -a.hit_tokens))
    if as_json:
        print_json({"tokens": len(packed) // 4, "namespaces": [_report(a) for a in answers]})
    else:
        _print(answers, len(packed) // 4)
    raise typer.Exit(0 if any(a.full for a in answers) else 1)


def _answer(
    text: str, packed: memoryview, place: _Directory, expected: Mapping[str, object] | None
) -> _Answer:
    described = fields_of(text)
    try:
        keyer, chunker = hasher_of(text)
    except (ConfigError, AdapterUnavailable) as error:
        return _Answer(text, described, why=str(error))
    keys, (starts, ends) = keyer.name(packed), keyer.cut(packed)
    lacks = [place.lacks(key) for key in keys]
    tail = bool(lacks) and ends[-1] - starts[-1] < chunker.size
    if tail and lacks[-1] == "absent":
        lacks.pop()
    hit = next((i for i, reason in enumerate(lacks) if reason), len(lacks))
    missed = hit < len(lacks)
    hit_tokens = ends[hit - 1] if hit else 0
    if hit < len(keys):  # other prompts may have left a part of the missing chunk
        places = range(ends[hit], starts[hit], -1)
        after = keys[hit - 1] if hit else None
        tails = keyer.name_ends(packed, starts[hit], places, after)
        found = (end for key, end in zip(tails, places, strict=True) if not place.lacks(key))
        hit_tokens = next(found, hit_tokens)
    differs = () if expected is None else differing(expected, described)
    return _Answer(
        identity=text,
        described=described,
        chunks=len(lacks),
        hit_chunks=hit,
        hit_tokens=hit_tokens,
        first_miss=(hit, starts[hit], ends[hit]) if missed else None,
        why=lacks[hit]
        if missed
        else ""
        if lacks
        else f"too short for a chunk of {chunker.size} tokens",
        damaged=sum(reason.startswith("damaged") for reason in lacks),
        differs=tuple(d for d in differs if d.ours != "nothing"),
    )


def _report(answer: _Answer) -> dict[str, object]:
    miss = answer.first_miss
    return {
        "identity": answer.described or answer.identity,
        "chunks": answer.chunks,
        "hit_chunks": answer.hit_chunks,
        "hit_tokens": answer.hit_tokens,
        "first_miss": miss and {"chunk": miss[0], "start": miss[1], "end": miss[2]},
        "why": answer.why,
        "damaged_chunks": answer.damaged,
        "differs": [difference._asdict() for difference in answer.differs],
        "full": answer.full,
    }


def _print(answers: Sequence[_Answer], tokens: int) -> None:
    if answers:
        print_table(
            ["model", "layout", "chunks ", "tokens ", "ends at", "why", "configuration"],
            [
                (
                    *model_and_layout(a.described or a.identity),
                    f"{a.hit_chunks} of {a.chunks}",
                    str(a.hit_tokens),
                    "" if a.first_miss is None else "tokens {1} to {2}".format(*a.first_miss),
                    a.why,
                    "; ".join(map(str, a.differs)),
                )
                for a in answers
            ],
        )
        typer.echo()
    best = next((a for a in answers if not a.differs), None)
    there = best.hit_tokens if best else 0
    typer.echo(f"{there} of {tokens} tokens are there, in {len(answers)} namespaces looked at")


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Say how much of a prompt a directory holds.")
    app.command()(explain)
    return run_app(app, "hexkv explain", arguments)
