"""An HTTP server with a cache: a thread for each request, all over one cache.

Needs hexkv and numpy; ``numpy_alone.py`` beside it has the model. Without arguments it asks itself
three questions at once; with a port it serves until it is interrupted:

    python examples/http_server.py 8080
    curl -d '[1, 2, 3]' http://127.0.0.1:8080
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import urlopen

from numpy_alone import CONFIG, LAYOUT, VOCABULARY, TinyModel

from hexkv.api import Cache, open_cache
from hexkv.api.arrays import ArrayKV

MODEL = TinyModel()


def handler(cache: Cache) -> type[BaseHTTPRequestHandler]:
    """Return a handler of requests: token ids as a JSON list."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kv = ArrayKV.zeros(LAYOUT, len(prompt))
            hit = cache.retrieve(prompt, kv, timeout=1.0).hit_tokens
            state = MODEL.run(prompt, kv, hit)
            cache.store(prompt, kv, wait=False)  # slower tiers are written behind the answer
            body = json.dumps({"hit_tokens": hit, "next": int(state.argmax())}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def ask(port: int, prompt: list[int]) -> int:
    """Send one request. Return the tokens that came from the cache."""
    with urlopen(f"http://127.0.0.1:{port}", json.dumps(prompt).encode(), timeout=60) as answer:
        found: int = json.load(answer)["hit_tokens"]
        return found


def main(port: int = 0) -> int:
    """Serve. Without a *port*, ask three questions at once; 0 if the document was cached."""
    with (
        open_cache(CONFIG, model="tiny", layout=LAYOUT) as cache,
        ThreadingHTTPServer(("127.0.0.1", port), handler(cache)) as server,
    ):
        if port:
            server.serve_forever()
        Thread(target=server.serve_forever).start()
        document = [token * token % VOCABULARY for token in range(500)]
        first = ask(server.server_port, document)
        with ThreadPoolExecutor(3) as three:
            questions = [[*document, question, 7] for question in range(3)]
            hits = list(three.map(ask, [server.server_port] * 3, questions))
        server.shutdown()
    print(f"tokens from the cache: {[first, *hits]}")
    return 0 if (first, hits) == (0, [448] * 3) else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
