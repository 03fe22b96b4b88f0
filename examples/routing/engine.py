"""A small serving engine: the text model that comes with hexkv-hf, behind OpenAI's completions.

    python examples/routing/engine.py --port 8001 --events 127.0.0.1:5557 --replay 127.0.0.1:5558

A prompt is a text or a list of token ids, of which there is one for each byte. What its cache holds
it publishes as KV events. Needs hexkv-hf, hexkv-local and hexkv-observe[events].
"""

import argparse
import json
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.adapters.hf.trained import trained
from hexkv.api import open_cache

BLOCK = 16


class Completions(BaseHTTPRequestHandler):
    """Answers one connection; the model answers one prompt at a time."""

    protocol_version = "HTTP/1.1"
    cached = None
    model = ""
    turn = Lock()

    def do_GET(self):
        if self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        else:
            self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            self.answer(404, {})
            return
        prompt = asked["prompt"]
        tokens = list(prompt.encode()) if isinstance(prompt, str) else prompt
        with self.turn:
            done = self.cached.generate(tokens, asked.get("max_tokens", 16))
        text = bytes(token & 255 for token in done.tokens[len(tokens) :]).decode(errors="replace")
        usage = {
            "prompt_tokens": len(tokens),
            "completion_tokens": len(done.tokens) - len(tokens),
            "total_tokens": len(done.tokens),
            "prompt_tokens_details": {"cached_tokens": done.prefill.hit_tokens},
        }
        choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": None}
        self.answer(
            200,
            {
                "id": "cmpl",
                "object": "text_completion",
                "created": 0,
                "model": self.model,
                "system_fingerprint": f"port {self.server.server_port}",
                "choices": [choice],
                "usage": usage,
            },
        )

    def answer(self, status, what):
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    for name in ("--events", "--replay"):
        options.add_argument(name, required=True, help="host:port")
    given = options.parse_args()
    model = trained("text")
    config = {
        "chunk": {"size": 64},
        "pool": {"bytes": "256MiB"},
        "observe": {
            "address": "",
            "events": given.events,
            "replay": given.replay,
            "events_block": BLOCK,
        },
    }
    with open_cache(config, namespace=namespace_of_model(model)) as cache:
        Completions.cached = CachedModel(model, cache)
        Completions.model = model.config.name_or_path
        server = ThreadingHTTPServer(("127.0.0.1", given.port), Completions)
        signal.signal(signal.SIGTERM, lambda *_: Thread(target=server.shutdown).start())
        server.serve_forever()


if __name__ == "__main__":
    main()
