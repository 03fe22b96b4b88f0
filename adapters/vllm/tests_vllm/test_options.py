"""Every field of vLLM's configuration is in the namespace, or on a list of those that need not."""

import dataclasses
import typing

import pytest
from vllm.config import VllmConfig

from engines.vllm.vllm_toy import configuration
from hexkv.adapters.vllm.configuration.options import (
    BY_OTHERS,
    NAMED,
    SECTIONS,
    UNRELATED,
    decided,
    options_of,
)


def part(section):
    """The class of a part of vLLM's configuration."""
    found = VllmConfig
    for step in section.split("."):
        hint = typing.get_type_hints(found)[step]
        found = next(one for one in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(one))
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_somebody_has_decided_about_each_field(section):
    """Red under a new vLLM: may KV depend on the field? Put it into a list of ``options``."""
    names = {field.name for field in dataclasses.fields(part(section))}
    assert names - decided(section) == set()


def test_somebody_has_decided_about_each_part():
    names = {field.name for field in dataclasses.fields(VllmConfig)}
    assert names - decided("") == set()


def test_no_field_is_in_two_lists():
    for section in ("", *SECTIONS):
        lists = [NAMED, BY_OTHERS, *UNRELATED.values()]
        names = [name for found in lists for name in found.get(section, "").split()]
        assert len(names) == len(set(names)), section


def test_of_a_plain_model_nothing_is_special(model):
    assert options_of(configuration(str(model), 256, True)) == {}
