"""Tests that need a vLLM are collected where there is one: ``make test-vllm``."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("vllm") else ["e2e", "tests_vllm"]
