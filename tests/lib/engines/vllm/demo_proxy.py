"""Routers for servers that prefill and that decode: a double of vLLM's demo, and vllm-router.

vLLM's demo (``disagg_proxy_demo.py`` among its examples, which no wheel has) is not run itself:
the double sends what it sends. A request goes to the prefiller first, with one token, unstreamed,
and six words in ``kv_transfer_params``; the answer must have some. They go to the decoder with the
request, as they came but for ``remote_host``, which is where the proxy reached the prefiller.
Nothing is repeated, and a server that fails is an error.
"""

import json
import subprocess
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from engines.vllm.vllm_engines import PATIENCE, ROOT
from processes import held_port, listening_ports, until

ROUTER = ROOT / ".venv" / "routers" / "bin" / "vllm-router"

ASKED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a prefiller is told; ``vllm-router`` says the same."""


def post(url, body):
    """The open answer to *body*."""
    asked = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urlopen(asked, timeout=PATIENCE)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            with post(self.server.prefill + self.path, self._first(body)) as answer:
                params = json.load(answer).get("kv_transfer_params")
            if not params:
                return self.send_error(502, "the prefiller said nothing of where the KV is")
            params["remote_host"] = "127.0.0.1"
            request = body | {"kv_transfer_params": params}
            with post(self.server.decode + self.path, request) as answer:
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.end_headers()
                while part := answer.read1(1024):
                    self.wfile.write(part)
        except HTTPError as error:
            self.send_error(error.code)

    def _first(self, body):
        body = body | {"max_tokens": 1, "stream": False, "kv_transfer_params": dict(ASKED)}
        if "max_completion_tokens" in body:
            body["max_completion_tokens"] = 1
        return body


@contextmanager
def demo(prefill, decode, log):
    """The double, as an address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.prefill, server.decode = prefill, decode
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def vllm_router(prefill, decode, log):
    """``vllm-router`` in its mode for both kinds of servers, as an address."""
    port, numbers = held_port(), held_port()
    place = ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    numbers = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(numbers)]
    servers = ["--vllm-pd-disaggregation", "--prefill", prefill, "--decode", decode]
    with log.open("wb") as said:
        process = subprocess.Popen([ROUTER, *servers, *place, *numbers], stdout=said, stderr=said)
    try:
        until(lambda: port in listening_ports(process.pid))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
