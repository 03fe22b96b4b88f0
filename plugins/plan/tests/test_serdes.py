"""``hexkv serdes``: what is measured, and what follows from it."""

from __future__ import annotations

import json

import pytest

from hexkv.contracts.kit.cases import each
from hexkv.plugins.__main__ import main


@pytest.fixture
def serdes(capsys):
    """Runs ``hexkv serdes`` in this process, briefly; gives exit code, output and errors."""

    def call(*words):
        code = main(["serdes", "--patience", "0.01", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_programs_get_what_was_measured_and_what_follows(serdes):
    code, out, err = serdes("--links", "1MB,1000GB", "--prefill", "1e9", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    forms = {form["serde"]: form for form in found["forms"]}
    assert forms["zstd"]["ratio"] > 1.2
    assert forms["zstd"]["decode_rate"] > 0
    slow, fast = found["links"]
    assert (slow["bytes_per_second"], slow["serde"]) == (1_000_000, None)
    assert slow["seconds"] == pytest.approx(8192 / 1e9)
    assert fast["bytes_per_second"] == 10**12


def test_over_a_slow_link_what_is_smallest_is_loaded(serdes):
    _, out, _ = serdes("--links", "1KB", "--prefill", "0.001", "--json")
    found = json.loads(out)
    smallest = max(found["forms"], key=lambda form: form["ratio"])
    assert found["links"][0]["serde"] == smallest["serde"]


def test_people_get_two_tables(serdes):
    code, out, _ = serdes("--tokens", "1000", "--links", "1250MB")
    assert code == 0
    assert "1,000 tokens, 131 MB of KV" in out
    assert "1,250 MB/s" in out
    assert "zstd" in out


@each("links", ["fast", "0", "", "1GB,"])
def test_a_link_that_is_none_is_a_wrong_call(serdes, links):
    code, _, err = serdes("--links", links)
    assert code == 2
    assert err
