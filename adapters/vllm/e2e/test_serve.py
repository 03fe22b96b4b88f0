"""``vllm serve`` as ``docs/vllm.md`` shows it, seen by the OpenAI client."""

import json
import re
import shlex
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from engines.vllm.vllm_engines import PATIENT, ROOT, environment, prompt
from engines.vllm.vllm_server import Server
from processes import until

PAGE = (ROOT / "docs" / "vllm.md").read_text()
CHUNK = 256
TOKENS = 3 * CHUNK + 40


def documented(name):
    """What the page shows as the file *name*."""
    return re.search(rf"^```yaml\n(# {re.escape(name)}\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[
        1
    ]


def shown(number, model):
    """The words after ``vllm`` of the page's command *number*, for another model."""
    lines = re.findall(r"^\$ (?:[A-Z_]+=\S+ )?vllm (serve (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    words = shlex.split(lines[number].replace("\\\n", ""))
    words[1] = str(model)
    return words


def patient(words):
    """The same words, with which hexkv waits as long as a busy machine may take."""
    at = words.index("--kv-transfer-config") + 1
    transfer = json.loads(words[at]) | {"kv_connector_extra_config": PATIENT}
    return [*words[:at], json.dumps(transfer), *words[at + 1 :]]


def text(words):
    return " ".join(f"w{word}" for word in words)


def same(server, model, reference, words, *, as_text=False):
    """Tokens that were cached for a prompt which was answered as without a connector."""
    answer = server.complete(str(model), text(words) if as_text else words)
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
    """The first command of the page: one flag, nothing else configured but patience."""
    flags = (*PLAIN, "--no-enable-prefix-caching")
    often, folder = {"VLLM_LOG_STATS_INTERVAL": "1"}, tmp_path_factory.mktemp("first")
    with Server([*patient(shown(0, model)), *flags], folder, **often) as server:
        yield server


def questions(model, server):
    """What the page asks the first server, as a script of the shell."""
    [lines] = re.findall(r"^(\$ question=.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    script = re.sub(r"^\$ ", "", lines, flags=re.MULTILINE)
    return script.replace("MODEL", str(model)).replace("localhost:8000", server.url[7:])


def test_the_pages_first_command_ends_in_a_hit_of_hexkvs(model, tmp_path):
    """vLLM as it is configured by default, with its own prefix cache, but without its compiler."""
    command = [*shown(0, model), "--enforce-eager"]
    with Server(command, tmp_path, VLLM_SERVER_DEV_MODE="1") as server:
        script = ["bash", "-euo", "pipefail", "-c", questions(model, server)]
        said = subprocess.run(script, capture_output=True, text=True, check=True).stdout
        assert '{"success":true}' in said
        counted = said.splitlines()[-1]
        assert counted.startswith("vllm:hexkv_loaded_tokens_total{")
        assert float(counted.split()[-1]) >= CHUNK
        assert server.said("Creating v1 connector with name: HexKVConnector")
        assert not server.said("kv_load_failure_policy is")


@pytest.mark.thorough
def test_a_mistake_is_the_last_that_the_log_says_before_anything_is_loaded(model, tmp_path):
    words = shown(0, model)
    at = words.index("--kv-transfer-config") + 1
    tiers = [{"store": "memory"}, {"store": "redsi"}]
    words[at] = json.dumps(json.loads(words[at]) | {"kv_connector_extra_config": {"tiers": tiers}})
    vllm = Path(sys.executable).with_name("vllm")
    log = subprocess.run(
        [vllm, *words], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    ).stderr
    *before, first, last = log.splitlines()
    assert first.endswith("vLLM does not start, for hexkv cannot be configured so:")
    assert "tiers[1].store (from kv_connector_extra_config): no store adapter 'redsi'" in last
    assert not [line for line in before if "Traceback" in line or "EngineCore" in line]


@pytest.mark.thorough
def test_the_cause_for_which_a_rank_cannot_start_is_the_last_line_of_the_log(model, tmp_path):
    """Of a process that ends before the one that the user started, which names no cause."""
    (tmp_path / "a file").touch()
    words = shown(0, model)
    at = words.index("--kv-transfer-config") + 1
    tiers = [{"store": "disk", "settings": {"root": str(tmp_path / "a file" / "cache")}}]
    words[at] = json.dumps(json.loads(words[at]) | {"kv_connector_extra_config": {"tiers": tiers}})
    vllm = Path(sys.executable).with_name("vllm")
    # vLLM 0.32 waits that long for an engine that has failed.
    env = environment(VLLM_ENGINE_READY_TIMEOUT_S="300")
    log = subprocess.run(
        [vllm, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    ).stderr
    lines = [it for it in log.splitlines() if "resource_tracker" not in it]  # of a helper of Python
    *_, first, last = [it for it in lines if not it.startswith("  warnings.warn")]
    assert first.endswith("vLLM does not start, because hexkv cannot:")
    assert "is not a directory" in last


def test_the_log_says_what_was_built(first):
    said = first.log.read_text()
    assert re.search(
        r"hexkv \S+ under vLLM \S+, rank 0 of 1: memory of \d+ [MG]iB; pool of"
        r" \d+ [MG]iB \(a quarter of \S+ GiB of free memory\)",
        said,
    )
    built = r"chunks of 256 tokens, the last to a block of \d+, sync loading, synchronous lookups"
    assert re.search(rf"{built}, 1 rank\(s\)", said)
    assert "KV is kept in whole blocks" in said


def test_one_flag_is_enough(first, model, reference):
    words = prompt("one flag", TOKENS)
    assert same(first, model, reference, words) == 0
    assert same(first, model, reference, words) == 3 * CHUNK


def test_text_is_cached_like_tokens(first, model, reference):
    words = prompt("text", TOKENS)
    assert same(first, model, reference, words, as_text=True) == 0
    assert same(first, model, reference, words) == 3 * CHUNK


def test_vllm_and_hexkv_say_what_was_loaded(first, model, reference):
    before = first.metrics()
    words = prompt("counted by a server", TOKENS)
    same(first, model, reference, words)
    same(first, model, reference, words)

    def grown(name):
        return first.metrics().get(name, 0.0) - before.get(name, 0.0)

    until(lambda: grown("vllm:external_prefix_cache_hits_total") == 3 * CHUNK)
    until(lambda: grown("vllm:hexkv_loaded_tokens_total") >= 3 * CHUNK)
    assert grown("vllm:hexkv_stored_tokens_total") >= 3 * CHUNK
    line = r"KV Transfer metrics: .*loaded_tokens=\d+.*loaded_bytes=\d+.*load_GB_per_second="
    until(lambda: re.search(line, first.log.read_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the second server is started."""
    folder = tmp_path_factory.mktemp("second")
    (folder / "hexkv.yaml").write_text(documented("hexkv.yaml"))
    return folder


@pytest.fixture(scope="module")
def second(model, folder, redis_server):
    """The second command of the page: by name, from a file. Its tiers are a disk and a Redis."""
    redis = {"url": redis_server.url, "prefix": f"{uuid.uuid4().hex}:"}
    tiers = [
        {"store": "disk", "settings": {"root": "cache"}},
        {"store": "redis", "settings": redis, "breaker": {"pause": 0.1, "longest_pause": 0.2}},
    ]
    configured = {
        "HEXKV_CONFIG": "hexkv.yaml",
        "HEXKV_POOL__BYTES": "256MiB",
        "HEXKV_TIERS": json.dumps(tiers),
    }
    flags = (*PLAIN, "--no-enable-prefix-caching")
    with Server([*patient(shown(1, model)), *flags], folder, **configured) as server:
        yield server


def stored(folder):
    return list(folder.glob("cache/??/*.hexkv"))


def test_the_name_alone_and_a_file_are_enough(second, folder, model, reference):
    words = prompt("by name", TOKENS)
    assert same(second, model, reference, words) == 0
    until(lambda: len(stored(folder)) == 3)
    assert same(second, model, reference, words) == 3 * CHUNK


def test_a_running_server_survives_damaged_files_and_a_killed_redis(
    second, folder, redis_server, model, reference
):
    prompts = [prompt(f"unlucky client {n}", TOKENS) for n in range(8)]
    reference(*prompts)

    def everybody():
        with ThreadPoolExecutor(len(prompts)) as clients:
            list(clients.map(lambda words: same(second, model, reference, words), prompts))

    before = len(stored(folder))
    everybody()
    until(lambda: len(stored(folder)) == before + 3 * len(prompts))
    for number, file in enumerate(stored(folder)):
        file.write_bytes(b"" if number % 2 else file.read_bytes()[::-1])
    everybody()
    redis_server.kill()
    for file in stored(folder):
        with suppress(FileNotFoundError):  # what was read ahead and is damaged goes by and by
            file.write_bytes(file.read_bytes()[:5000])
    everybody()
    assert second.get("/health") == ""
