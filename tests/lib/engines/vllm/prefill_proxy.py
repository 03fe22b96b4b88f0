"""The example's proxy between two ``vllm serve``, and what its clients see."""

import signal
import subprocess
import sys

from openai import OpenAI

from engines.vllm.vllm_engines import PATIENCE, ROOT
from processes import held_port, listening_ports, until

EXAMPLE = ROOT / "examples" / "prefill-decode"
FLAGS = [
    "--enable-prompt-tokens-details", "--no-enable-prefix-caching", "--enforce-eager",
    "--dtype", "float32", "--max-model-len", "4096", "--block-size", "32",
]  # fmt: skip


class Proxy:
    """The example's proxy, in a process of its own. Ends with the ``with`` block."""

    def __init__(self, folder, prefill, decode, *options):
        self.port = held_port()
        servers = [
            "--prefill",
            prefill.url,
            "--decode",
            decode.url,
            "--port",
            str(self.port),
            *options,
        ]
        self.log = folder / "proxy.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, EXAMPLE / "proxy.py", *servers, "--port", str(self.port)],
                stdout=log,
                stderr=log,
            )
        try:
            until(lambda: self.port in listening_ports(self.process.pid))
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.client = OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1",
            api_key="none",
            max_retries=0,
            timeout=PATIENCE,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # First the client: it keeps connections, which are its own to close.
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()

    def ask(self, model, words, tokens=8, **more):
        return self.client.completions.create(
            model=str(model), prompt=words, max_tokens=tokens, temperature=0.0, logprobs=1,
            extra_body={"ignore_eos": True}, **more
        )  # fmt: skip


def same(answer, expected):
    """As one engine says without a cache. How many tokens of the prompt were cached."""
    [choice] = answer.choices
    [want] = expected.choices
    assert choice.finish_reason == "length"
    assert choice.text == want.text
    likely = choice.logprobs.token_logprobs, want.logprobs.token_logprobs
    for one, other in zip(*likely, strict=True):
        assert abs(one - other) <= 1e-5
    return answer.usage.prompt_tokens_details.cached_tokens


def answers_alone(server, model, *prompts):
    """What a server answers to prompts without the cache, each alone."""
    hands_off = {"hexkv": {"read": False, "write": False}}
    return [
        server.client.completions.create(
            model=str(model), prompt=words, max_tokens=8, temperature=0.0, logprobs=1,
            extra_body={"ignore_eos": True, "kv_transfer_params": hands_off},
        )
        for words in prompts
    ]  # fmt: skip


def quiet(server):
    """Whether a server has nothing to do."""
    found = server.metrics()
    return not found["vllm:num_requests_running"] + found["vllm:num_requests_waiting"]
