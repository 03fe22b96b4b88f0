"""Retired values: those of earlier releases, with which an upgraded process still starts."""

from __future__ import annotations

from hexkv.plugins.configuration.places import Path, render
from hexkv.plugins.configuration.sources import ConfigLayers

_POLICIES = {"adaptive": "arc"}
"""The policies that were removed, and those in their place."""


def replace_retired(layers: ConfigLayers) -> list[str]:
    """Replace retired values in *layers*, all of them merged. Return a line for each."""
    lines = []

    def report(place: Path, change: str) -> None:
        origin = layers.origins.get(place, "")
        lines.append(f"{render(place)}{origin and f' (from {origin})'}: {change}")

    tiers = layers.values.get("tiers")
    for number, tier in enumerate(tiers if isinstance(tiers, list) else ()):
        if not isinstance(tier, dict):
            continue  # the schema has the message
        former = tier.get("policy")
        if isinstance(former, str) and (policy := _POLICIES.get(former)) is not None:
            tier["policy"] = policy
            report(("tiers", number, "policy"), f"{former} was removed: {policy} takes its place")
    return lines
