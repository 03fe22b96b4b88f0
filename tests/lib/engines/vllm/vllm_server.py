"""``vllm serve`` in a process of its own, at a port of its choice, and what its clients see."""

import re
import signal
import subprocess
import sys
import urllib.request
from functools import partial
from http.client import HTTPException
from pathlib import Path
from threading import Event
from urllib.error import HTTPError

from openai import OpenAI

from engines.vllm.vllm_engines import PATIENCE, environment
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline
from processes import ended, kill_session, listening_ports, until

_SAMPLE = re.compile(r"^([\w:]+)(?:{[^}]*})? (\S+)$", re.MULTILINE)


class Server:
    """A server that runs a command line such as the documentation shows.

    Args:
        command: the words after ``vllm``.
        folder: where it is started; its log is there.
        env: on top of an environment without any configuration of hexkv or vLLM.
    """

    def __init__(self, command, folder, **env):
        self.port = 0
        self.client = None
        self.log = Path(folder) / "server.log"
        # One process with the engine in it is for tests that count steps; users have several.
        env = environment(**env) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        vllm = Path(sys.executable).with_name("vllm")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [vllm, *command, "--host", "127.0.0.1", "--port", "0"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise
        self.client = OpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            timeout=PATIENCE,
            # vLLM hangs up after five idle seconds, perhaps just when the next question comes.
            default_headers={"Connection": "close"},
        )

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def _wait(self):
        patience, pause = Deadline.after(SystemClock(), PATIENCE), Event()
        while True:
            assert not ended(self._process), self.tail()
            assert not patience.expired, self.tail()
            if self._answers():
                return
            pause.wait(0.2)

    def _answers(self):
        """Whether the process is healthy at one of the ports at which it listens by now."""
        for port in listening_ports(self._process.pid):
            self.port = port
            try:
                self.get("/health")
            except HTTPError as error:
                error.close()
            except (OSError, HTTPException):
                continue
            else:
                return True
        return False

    def get(self, path):
        """The text at *path*."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=120) as answer:
            return answer.read().decode()

    def metrics(self):
        """Every counter of ``/metrics`` by name, summed over its labels."""
        found = {}
        for name, value in re.findall(
            r"^([\w:]+)(?:{[^}]*})? (\S+)$", self.get("/metrics"), re.MULTILINE
        ):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def complete(self, model, prompt, tokens=8):
        """A completion, greedy and with log probabilities."""
        return self.client.completions.create(
            model=model,
            prompt=prompt,
            max_tokens=tokens,
            temperature=0.0,
            logprobs=1,
            extra_body={"ignore_eos": True},
        )

    def said(self, text):
        """Whether *text* is in the log so far."""
        return text in self.log.read_text(errors="replace")

    def tail(self):
        return self.log.read_text(errors="replace")[-8000:]

    def stop(self):
        """End it as an operator does."""
        self._process.send_signal(signal.SIGTERM)
        try:
            until(partial(ended, self._process))
        finally:
            self.kill()

    def kill(self):
        """Every process of the server, at once; and the connections of its clients here."""
        kill_session(self._process)
        if self.client is not None:
            self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
