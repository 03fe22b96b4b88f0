"""Registers the commands with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hexkv.plugins.spec import CommandSpec, hookimpl


def _demo(arguments: Sequence[str]) -> int:
    from hexkv.adapters.hf.demo.command import main

    return main(arguments)


def _warm(arguments: Sequence[str]) -> int:
    from hexkv.adapters.hf.warm.command import run_warm

    return run_warm(arguments)


def _blend(arguments: Sequence[str]) -> int:
    from hexkv.adapters.hf.blending.command import run_blend

    return run_blend(arguments)


def _quality(arguments: Sequence[str]) -> int:
    from hexkv.adapters.hf.quality.command import run_quality

    return run_quality(arguments)


def _tokens(arguments: Sequence[str]) -> int:
    from hexkv.adapters.hf.warm.command import run_tokens

    return run_tokens(arguments)


_NEEDS = ("torch", "transformers")
_HINT = "pip install hexkv-hf"


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [
        CommandSpec(
            "demo",
            "Show a first hit, over the end of a process",
            _demo,
            requires=_NEEDS,
            hint=_HINT,
        ),
        CommandSpec("warm", "Compute documents before the first request", _warm, _NEEDS, _HINT),
        CommandSpec(
            "blend",
            "Measure what blending does to a model's answers",
            _blend,
            (*_NEEDS, "hexkv.blending"),
            'pip install "hexkv-hf[blending]"',
        ),
        CommandSpec("quality", "Measure which serdes a model bears", _quality, _NEEDS, _HINT),
        CommandSpec("tokens", "Print the token ids of a document", _tokens, _NEEDS, _HINT),
    ]
