"""Tests that need an SGLang are collected where there is one: ``make test-sglang``."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("sglang") else ["e2e", "tests_sglang"]
