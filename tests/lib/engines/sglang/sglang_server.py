"""``sglang.launch_server`` in a process of its own, at a free port, and what its clients see."""

import json
import re
import subprocess
import sys
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from urllib.error import HTTPError, URLError

from engines.sglang.sglang_engines import PATIENCE, SETTINGS, environment
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline
from processes import ended, free_port, kill_session, listening_ports, until

ADMIN = "for this test only"
"""The key that SGLang asks of those who change its storage."""

LOG = "server.log"
MOST = 3600.0
"""Seconds for the imports of a server on a busy machine: its end is an event, not a time."""

_SAMPLE = re.compile(r"^([\w:]+)(?:{[^}]*})? (\S+)$", re.MULTILINE)


class Server:
    """A server of one model. Ends with the ``with`` block, with every process it started."""

    def __init__(self, model, folder, **settings):
        self.port = free_port()
        self.log = Path(folder) / LOG
        self._process = _launched(model, folder, self.port, settings)
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise

    def _wait(self):
        patience, pause = Deadline.after(SystemClock(), PATIENCE), Event()
        while True:
            assert not ended(self._process), self.tail()
            assert not patience.expired, self.tail()
            with suppress(URLError, ConnectionError, TimeoutError):
                if self.ask("GET", "/health")[0] == 200:
                    break
            pause.wait(0.2)
        assert self.port in listening_ports(self._process.pid), "somebody else listens there"

    def ask(self, method, path, content=None):
        """The status and the text of the answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if content is None else json.dumps(content).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN}"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def attach(self, **extra):
        """Put hexkv behind SGLang's host memory, as *extra* configures it."""
        return self._change(
            "PUT",
            {
                "hicache_storage_backend": "dynamic",
                "hicache_storage_backend_extra_config_json": json.dumps(extra),
                "hicache_storage_prefetch_policy": "wait_complete",
            },
        )

    def detach(self):
        """Leave SGLang's host memory alone again."""
        return self._change("DELETE")

    def _change(self, method, content=None):
        """Change what is behind host memory, which SGLang refuses while it does something else.

        A request that was answered counts for a moment longer.
        """
        patience, pause = Deadline.after(SystemClock(), 60.0), Event()
        while True:
            status, said = self.ask(method, "/hicache/storage-backend", content)
            if "is not idle" not in said or patience.expired:
                return status, said
            pause.wait(0.05)

    def generate(self, words, tokens=8, **more):
        """The tokens that follow *words*, and how many of them came from the storage."""
        wanted = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        status, text = self.ask(
            "POST", "/generate", {"input_ids": words, "sampling_params": wanted} | more
        )
        assert status == 200, text
        answer = json.loads(text)
        said = answer["meta_info"]
        return answer["output_ids"], (said.get("cached_tokens_details") or {}).get("storage", 0)

    def flush(self):
        """Forget what device and host memory hold, once nothing is under way."""
        patience, pause = Deadline.after(SystemClock(), 60.0), Event()
        while self.ask("POST", "/flush_cache")[0] != 200:
            assert not patience.expired, self.tail()
            pause.wait(0.05)

    def counted(self, name):
        """A counter of ``/metrics``, summed over its labels."""
        samples = _SAMPLE.findall(self.ask("GET", "/metrics")[1])
        return sum(float(value) for found, value in samples if found == name)

    def tail(self):
        return self.log.read_text(errors="replace")[-6000:]

    def kill(self):
        """Every process of the server, at once."""
        kill_session(self._process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def log_of_failed_start(model, folder, **settings):
    """The lines of a server that cannot start, once it has ended by itself."""
    process = _launched(model, folder, free_port(), settings)
    try:
        until(partial(ended, process), MOST)
    finally:
        code = kill_session(process)
    assert code != 0
    return (Path(folder) / LOG).read_text(errors="replace").splitlines()


def _launched(model, folder, port, settings):
    given = {"admin_api_key": ADMIN, "enable_metrics": True, "host": "127.0.0.1"}
    words = _words(SETTINGS | given | {"port": port, "model_path": model} | settings)
    with (Path(folder) / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )


def _words(settings):
    """*settings* as a command line has them."""
    for name, value in settings.items():
        yield f"--{name.replace('_', '-')}"
        if isinstance(value, tuple):
            yield from value
        elif value is not True:
            yield json.dumps(value) if isinstance(value, dict) else str(value)
