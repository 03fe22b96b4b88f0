"""``hexkv inspect``: the headers of the frames in a directory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hexkv.adapters.local.survey import Contents, frame_summary
from hexkv.plugins.cli.output import (
    Json,
    human_age,
    human_size,
    installed,
    named,
    new_app,
    print_json,
    print_table,
    run_app,
)
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.algorithms import frame_codec
from hexkv.plugins.observing.described import model_and_layout
from hexkv.ports import NAMESPACE_BYTES, FrameHeader, frame_bytes, namespace_of

_SHOWN = 20


def inspect(
    directory: Annotated[Path, typer.Argument(help="Where frames lie, at any depth.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read the payloads as well.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List every frame, not the newest.")] = False,
    as_json: Json = False,
) -> None:
    """Describe the frames in a directory. Exit code 1 if some are damaged."""
    codec = frame_codec(installed(), "crc32")  # no frame is sealed here
    with named("DIRECTORY"):
        contents = frame_summary(directory, codec, verify=verify)
    now = SystemClock().wall()
    if as_json:
        print_json(_report(contents, now, directory))
    else:
        _print(contents, now, None if every else _SHOWN)
    raise typer.Exit(1 if contents.damaged else 0)


def _report(contents: Contents, now: float, root: Path) -> dict[str, object]:
    return {
        "directory": str(root),
        "frames": [
            {
                "path": path,
                "key": header.key.hex(),
                "identity": _identity(header),
                "tokens": header.tokens,
                "serde": header.serde,
                "raw_bytes": header.raw_bytes,
                "payload_bytes": header.payload_bytes,
                "bytes": frame_bytes(header.payload_bytes),
                "checksum": header.checksum,
                "created": header.created,
                "age_seconds": max(0.0, now - header.created),
            }
            for path, header in contents.frames
        ],
        "namespaces": _namespaces(contents),
        "damaged": [{"path": path, "reason": reason} for path, reason in contents.damaged],
        "unfinished": contents.unfinished,
        "foreign": contents.foreign,
    }


def _namespaces(contents: Contents) -> list[dict[str, object]]:
    chunks: Counter[bytes] = Counter()
    tokens: Counter[bytes] = Counter()
    size: Counter[bytes] = Counter()
    headers: dict[bytes, FrameHeader] = {}
    for _, header in contents.frames:
        space = namespace_of(header.key)
        headers.setdefault(space, header)
        chunks[space] += 1
        tokens[space] += header.tokens
        size[space] += frame_bytes(header.payload_bytes)
    return [
        {
            "namespace": space.hex(),
            "identity": _identity(headers[space]),
            "chunks": count,
            "tokens": tokens[space],
            "bytes": size[space],
        }
        for space, count in chunks.most_common()
    ]


def _print(contents: Contents, now: float, most: int | None) -> None:
    shown = contents.frames[:most]
    if shown:
        print_table(
            ["model", "layout", "tokens ", "bytes ", "serde", "age ", "key"],
            [
                (
                    *model_and_layout(_identity(header)),
                    str(header.tokens),
                    human_size(frame_bytes(header.payload_bytes)),
                    header.serde,
                    human_age(now - header.created),
                    header.key[NAMESPACE_BYTES:].hex()[:12],
                )
                for _, header in shown
            ],
        )
        if left := len(contents.frames) - len(shown):
            typer.echo(f"... and {left} older (--all lists them)")
        typer.echo()
        print_table(
            ["namespace", "model", "layout", "chunks ", "tokens ", "bytes "],
            [
                (
                    str(row["namespace"])[:12],
                    *model_and_layout(row["identity"]),
                    str(row["chunks"]),
                    str(row["tokens"]),
                    human_size(int(str(row["bytes"]))),
                )
                for row in _namespaces(contents)
            ],
        )
        typer.echo()
    if contents.damaged:
        print_table(["damaged", "reason"], contents.damaged[:most])
        typer.echo()
    typer.echo(
        f"{len(contents.frames)} frames, {len(contents.damaged)} damaged,"
        f" {contents.unfinished} unfinished, {contents.foreign} foreign files"
    )


def _identity(header: FrameHeader) -> object:
    """Return the namespace as JSON values; as text, if another version wrote another format."""
    try:
        return json.loads(header.identity)
    except (ValueError, RecursionError):
        return header.identity


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Describe the frames in a directory.")
    app.command()(inspect)
    return run_app(app, "hexkv inspect", arguments)
