"""The files of the tutorial are what it shows, and configure what it says."""

import json
from pathlib import Path

import pytest

from hexkv.adapters.sglang.configuration import RawConfig
from hexkv.contracts.kit.cases import each
from hexkv.plugins.composition.checking import check
from hexkv.plugins.discovery.discovery import discover

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "sglang"
PAGE = (ROOT / "docs" / "sglang.md").read_text()


@each("file", sorted(EXAMPLES.iterdir()), ids=lambda file: file.name)
def test_a_file_is_shown_as_it_is(file):
    assert f"```{file.suffix[1:] if file.suffix == '.yaml' else ''}\n{file.read_text()}```" in PAGE


@pytest.mark.parametrize(
    ("file", "inside", "tiers"),
    [("hicache.json", None, ["disk"]), ("linker.json", "linker_extra_config", ["memory", "disk"])],
)
def test_a_file_configures_an_engine(file, inside, tiers, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    given = json.loads(Path(file).read_text())
    registry = discover()
    configured = RawConfig(given[inside] if inside else given, registry, {}).with_pages(64)
    check(configured.engine, registry)
    assert [tier.store for tier in configured.engine.settings.tiers] == tiers
    assert configured.engine.settings.chunk.size == 64


def test_every_setting_of_the_adapter_is_explained():
    from dataclasses import fields

    from hexkv.adapters.sglang.settings import SGLangSettings

    shown = PAGE.split("| key | default | meaning |")[1].split("\n\n")[0]
    assert all(f"`{field.name}`" in shown for field in fields(SGLangSettings))
