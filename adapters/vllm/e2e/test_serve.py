"""``vllm serve`` as ``docs/vllm.md`` shows it, seen by the OpenAI client."""

import re
import shlex
import uuid
from itertools import count

import pytest

from redis_servers import until
from vllm_engines import ROOT, prompt
from vllm_server import Server

PAGE = (ROOT / "docs" / "vllm.md").read_text()
CHUNK = 256
TOKENS = 3 * CHUNK + 40


def documented(name):
    """What the page shows as the file *name*."""
    return re.search(rf"^```yaml\n(# {re.escape(name)}\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]


def shown(number, model):
    """The words after ``vllm`` of the page's command *number*, for another model."""
    lines = re.findall(r"^\$ (?:HEXKV_\S+ )?vllm (serve (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    words = shlex.split(lines[number].replace("\\\n", ""))
    words[1] = str(model)
    return words


def text(words):
    return " ".join(f"w{word}" for word in words)


def same(server, model, reference, words):
    """Tokens that were cached for a prompt which was answered as without a connector."""
    answer = server.complete(str(model), words)
    [choice], [expected] = answer.choices, reference(words)
    assert choice.finish_reason == "length"
    assert choice.text.split() == [f"w{token}" for token in expected.tokens]
    for one, other in zip(choice.logprobs.token_logprobs, expected.logprobs, strict=True):
        assert abs(one - other) <= 1e-5
    return answer.usage.prompt_tokens_details.cached_tokens


PLAIN = ("--dtype", "float32", "--enforce-eager", "--enable-prompt-tokens-details")
"""What the tests add for the sake of a small model in float32; and to see what was cached."""


@pytest.fixture(scope="module")
def first(model, tmp_path_factory):
    """The first command of the page: one flag, nothing else configured."""
    flags = (*PLAIN, "--no-enable-prefix-caching")
    with Server([*shown(0, model), *flags], tmp_path_factory.mktemp("first")) as server:
        yield server


def test_one_flag_is_enough(first, model, reference):
    words = prompt("one flag", TOKENS)
    assert same(first, model, reference, words) == 0
    assert same(first, model, reference, words) == 3 * CHUNK


def test_text_is_cached_like_tokens(first, model, reference):
    words = prompt("text", TOKENS)
    assert same(first, model, reference, text(words)) == 0
