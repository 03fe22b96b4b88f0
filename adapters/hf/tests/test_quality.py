"""``hexkv quality``: which serdes a model bears, and a configuration for that model alone."""

from __future__ import annotations

import json

import pytest
import yaml

from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.quality.command import cases_of
from hexkv.adapters.hf.trained import trained
from hexkv.contracts.kit.cases import case
from hexkv.plugins.__main__ import main
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import ConfigError, InvalidRequest

SERDES = ["--serde", "zstd", "--serde", "int8", "--serde", "int4"]


def quality(*arguments):
    return main(["quality", *map(str, arguments)])


def test_serdes_that_keep_a_bound_are_named_for_this_model_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = list((b"def first(item):\n    return item[0]\n\n\n" * 4)[:120])
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps(text[shift:]) for shift in (0, 3)))
    trained("text").save_pretrained("hexkv-text")
    given = ["hexkv-text", "--prompts", prompts, "--answer", "16"]
    assert quality(*given, *SERDES, "--bound", "1e-2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["serde"]: row for row in found["serdes"]}
    assert rows["zstd"]["kl"] == 0 < rows["int8"]["kl"] < rows["int4"]["kl"]
    assert all(row["seconds"] > 0 and row["kl_95"] >= 0 for row in rows.values())
    assert rows["zstd"]["keeps"]
    assert rows["int8"]["keeps"]
    assert quality(*given, *SERDES[:4], "--bound", "1e-2") == 0
    lines = capsys.readouterr().out
    config = yaml.safe_load(lines[lines.index("model:") :])
    assert config["model"]["measured"] == found["measured"]
    assert config["tiers"] == [{"serde": "int8"}]
    assert quality(*given, *SERDES[:2]) == 1, "a lossless one needs no bound"

    config["tiers"][0]["store"] = "heap"
    config["tiers"][0]["budget"] = "1MiB"
    config["pool"] = {"bytes": "16MiB", "settings": {"huge_pages": False}}
    (tmp_path / "hexkv.yaml").write_text(yaml.safe_dump(config))
    loaded = load("hexkv.yaml")
    with build(loaded, namespace_of_model(trained("text"))):
        pass
    with pytest.raises(ConfigError, match=r"model\.measured.* `hexkv quality`"):
        build(loaded, namespace_of_model(trained("alias")))

    capsys.readouterr()
    for wrong, named in (
        (["--bound", "nan"], "--bound"),
        (["--serde", "wishes"], "--serde"),
        (["--answer", "64"], "--prompts"),
        (["--prompts", "nowhere.json"], "--prompts"),
    ):
        with case(wrong):
            assert quality(*given, *wrong) == 2
            assert named in capsys.readouterr().err
    with (tmp_path / "hexkv-text" / "model.safetensors").open("r+b") as weights:
        weights.truncate(1000)
    assert quality(*given, *SERDES[:2]) == 2
    assert "MODEL hexkv-text: " in capsys.readouterr().err
    with pytest.raises(InvalidRequest, match="two prompts"):
        cases_of([text], 16)
