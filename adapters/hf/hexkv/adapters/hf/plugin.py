"""Tells hexkv about the demo. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hexkv.plugins.spec import CommandSpec, hookimpl


def _demo(arguments: Sequence[str]) -> int:
    from hexkv.adapters.hf.demo.command import main

    return main(arguments)


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [
        CommandSpec(
            "demo",
            "A first hit: one process stores and is killed, the next one answers sooner",
            _demo,
            requires=("torch", "transformers"),
            hint="pip install hexkv-hf",
        )
    ]
