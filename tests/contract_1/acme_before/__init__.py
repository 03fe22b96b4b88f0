"""Tells hexkv about acme-before. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hexkv.plugins import AdapterSpec, OpenContext, hookimpl


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of all of them: plain fields with defaults."""


def _open_store(settings: Settings, context: OpenContext) -> object:
    from acme_before.store import AcmeStore

    del settings, context
    return AcmeStore()


def _open_memory(settings: Settings, context: OpenContext) -> object:
    from acme_before.memory import AcmeMemory

    del settings, context
    return AcmeMemory()


def _open_serde(settings: Settings, context: OpenContext) -> object:
    from acme_before.serde import AcmeSerde

    del settings, context
    return AcmeSerde()


def _open_policy(settings: Settings, context: OpenContext) -> object:
    from acme_before.policy import AcmePolicy

    del settings, context
    return AcmePolicy()


def _open_checksum(settings: Settings, context: OpenContext) -> object:
    from acme_before.checksum import ACME_CHECKSUM

    del settings, context
    return ACME_CHECKSUM


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    # A setting that says where chunks lie belongs in here: see the guide on isolation.
    yield AdapterSpec("store", "acme-before", "a store", _open_store, Settings, isolate={})
    yield AdapterSpec("memory", "acme-before", "a memory provider", _open_memory, Settings)
    yield AdapterSpec("serde", "acme-before", "a serde", _open_serde, Settings, contract=1)
    yield AdapterSpec("policy", "acme-before", "a policy", _open_policy, Settings, contract=1)
    yield AdapterSpec("checksum", "acme-before", "a checksum", _open_checksum, Settings, contract=1)
