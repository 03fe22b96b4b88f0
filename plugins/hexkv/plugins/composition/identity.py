"""The namespace of a cache's chunks: the host's, and the configuration's additions to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import identity, scheme_of
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.configuration.places import Path
from hexkv.plugins.discovery.algorithms import hash_algorithm
from hexkv.ports import ConfigError, DType, KVLayout, Namespace

VOUCHED = "vouched for: "
"""Before a configured ``model.weights``: no digest begins like this."""


def identify(namespace: Namespace, loaded: Loaded) -> Namespace:
    """Return *namespace* with the additions of the section ``model``.

    A configured revision is added to the host's knowledge of the weights, never in its place;
    ``model.weights`` replaces it, and is marked in the identity. A configured name replaces the
    host's if a digest identifies the weights.

    Raises:
        ConfigError: both give a value, and they differ: one of them is wrong, and a cache that
            believed it would mix KV that must not be mixed.
    """
    model = loaded.settings.model
    if model.name and (namespace.revision or model.weights):
        # The digest tells models apart; hosts that share a cache agree on the name.
        namespace = replace(namespace, model=model.name)
    host = {"name": namespace.model, "lora": namespace.lora, "salt": namespace.salt}
    configured = {
        "name": model.name,
        "lora": model.lora,
        "salt": model.salt.get_secret_value(),
    }
    extra = dict(namespace.extra)
    for name, value in configured.items():
        if value and host[name] not in ("", value):
            raise _disagree(loaded, ("model", name), "" if name == "salt" else host[name])
    for name, value in model.extra.items():
        if extra.setdefault(name, value) != value:
            raise _disagree(loaded, ("model", "extra", name), extra[name])
    if model.revision and extra.setdefault("revision", model.revision) != model.revision:
        raise _disagree(loaded, ("model", "revision"), extra["revision"])
    return replace(
        namespace,
        model=host["name"] or configured["name"],
        revision=f"{VOUCHED}{model.weights}" if model.weights else namespace.revision,
        lora=host["lora"] or configured["lora"],
        salt=host["salt"] or configured["salt"],
        extra=tuple(sorted(extra.items())),
    )


def measured_identity(namespace: Namespace) -> str:
    """Return SHA-256, in hexadecimal, of the model of *namespace*: not of its layout or tenant.

    Hosts keep KV of one model in several layouts; the effect of a serde is that of the model.
    """
    facts = (namespace.model, namespace.revision, namespace.lora, namespace.extra)
    return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()


def refuse_unmeasured(namespace: Namespace, loaded: Loaded) -> None:
    """Refuse a model for which the configured serdes were not measured.

    Args:
        namespace: of :func:`identify`.
        loaded: the configuration.

    Raises:
        ConfigError: ``model.measured`` names another model.
    """
    measured = loaded.settings.model.measured
    if measured and measured != measured_identity(namespace):
        raise ConfigError(
            f"{loaded.locate(('model', 'measured'))}: serdes were measured for another model than"
            f" {namespace.model!r} with these weights: run `hexkv quality` for this one"
        )


def _disagree(loaded: Loaded, path: Path, host: str) -> ConfigError:
    shown = f" {host!r}" if host else " something else"
    return ConfigError(f"{loaded.locate(path)}: the engine's host has{shown}")


def expected_fields(loaded: Loaded) -> Mapping[str, object]:
    """Return the fields of the identity that a configuration decides.

    The host decides those that it leaves empty, as well as the layout and the rank.

    Raises:
        AdapterUnavailable: its hash is not installed.
    """
    settings = loaded.settings
    any_layout = KVLayout.attention(DType.UINT8, layers=1, heads=1, key_width=1)
    namespace = identify(Namespace("", any_layout), loaded)
    scheme = scheme_of(PrefixChunker(settings.chunk.size), seeded=settings.chunk.seeded)
    text = identity(namespace, scheme, hash_algorithm(settings.hash).name)
    fields: dict[str, object] = json.loads(text)
    return {
        name: value
        for name, value in fields.items()
        if value and name not in ("layout", "parallel")
    }
