"""A scorecard's badge: a small picture for a README, drawn without a badge service."""

from __future__ import annotations

from html import escape

from hexkv.contracts.kit.promise import Level
from hexkv.contracts.scorecard._card import Card, Kit, Verdict

_GREEN, _AMBER, _RED, _GREY = "#2e7d32", "#a36200", "#c62828", "#555"
_CHARACTER = 6.6
"""Width of a character of Verdana at 11 pixels, about; ``textLength`` makes it exact."""


def badge(card: Card, kit: Kit) -> str:
    """An SVG that names the contract and the levels held."""
    left = f"hexkv contract {kit.contract}"
    right, colour = _words(card)
    first, second = (round(len(text) * _CHARACTER) + 14 for text in (left, right))
    title = escape(f"{card.subject.name}: {right}")

    def words(text: str, middle: float, width: int) -> str:
        return (
            f'<text x="{middle:g}" y="14" textLength="{width - 14}" text-anchor="middle" '
            f'fill="#fff" font-family="Verdana,sans-serif" font-size="11">{escape(text)}</text>'
        )

    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{first + second}" height="20" '
        f'role="img" aria-label="{title}"><title>{title}</title>'
        f'<rect width="{first}" height="20" fill="{_GREY}"/>'
        f'<rect x="{first}" width="{second}" height="20" fill="{colour}"/>'
        f"{words(left, first / 2, first)}{words(right, first + second / 2, second)}</svg>\n"
    )


def _words(card: Card) -> tuple[str, str]:
    broken, waived = (len(card.having(v)) for v in (Verdict.BROKEN, Verdict.WAIVED))
    if broken:
        return f"{broken} broken", _RED
    if not card.held:
        return "nothing checked", _GREY
    held = _runs(card.held)
    return (f"{held}, {waived} waived", _AMBER) if waived else (held, _GREEN)


def _runs(levels: list[Level]) -> str:
    """``L0-L3 L5`` for L0, L1, L2, L3 and L5."""
    every = list(Level)
    runs: list[list[Level]] = []
    for level in levels:
        if runs and every.index(level) == every.index(runs[-1][-1]) + 1:
            runs[-1].append(level)
        else:
            runs.append([level])
    return " ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
