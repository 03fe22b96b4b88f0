"""``hexkv bench``: each tier alone, with KV that is gone afterwards."""

import json

import pytest

from hexkv.plugins.__main__ import main

pytestmark = pytest.mark.thorough


def test_each_tier_is_measured_alone_and_left_empty_and_a_dead_one_is_named(tmp_path, capsys):
    root = tmp_path / "kv"
    config = tmp_path / "hexkv.yaml"
    config.write_text(
        "tiers:\n  - {store: memory, budget: 1MiB}\n"
        f"  - {{store: disk, settings: {{root: {root}}}}}\n"
        "  - {store: redis, settings: {url: 'redis://127.0.0.1:1'}}\n"
    )
    words = ["--config", str(config), "--size", "8MiB", "--rounds", "1", "--json"]
    assert main(["bench", *words]) == 0
    memory, disk, redis = json.loads(capsys.readouterr().out)
    assert (memory["tier"], memory["bytes"]) == ("memory", 8 << 20)
    assert min(disk[rate] for rate in ("store", "load", "load_ms")) > 0
    assert [path for path in root.rglob("*") if path.suffix == ".kv"] == []
    assert redis["error"] == "stored 0 of 512 tokens: write failed"


def test_a_size_that_is_none_is_refused_by_the_name_of_its_option(capsys):
    assert main(["bench", "--size", "much"]) == 2
    assert "--size" in capsys.readouterr().err
