"""A small router: each request is prefilled by one vLLM server, and decoded by another one.

    python proxy.py --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200 --port 8000

A prefiller is asked for one token, a decoder then for the answer, with the place of the KV that the
prefiller named. Without a prefiller, or one in time, the decoder is asked alone and computes the
prompt itself. Answers are passed on as they come; a client that hangs up ends its request on the
server, too. Needs aiohttp, which vLLM brings along.
"""

import argparse
import asyncio
import logging
import time
from itertools import count

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

log = logging.getLogger("proxy")

LARGEST = 64 << 20
"""Bytes of a request."""

LEFT_OUT = 2.0
"""Seconds for which a server is not asked first after it failed."""

OWN = {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding",
       "upgrade", "proxy-authenticate", "proxy-authorization"}  # fmt: skip
"""Headers that belong to a connection."""


class Servers:
    """Servers that do the same, asked in turn; those that failed lately come last."""

    def __init__(self, urls):
        self._failed = dict.fromkeys((url.rstrip("/") for url in urls), 0.0)
        self._turns = count()

    def __iter__(self):
        urls, now = list(self._failed), time.monotonic()
        first = next(self._turns) % len(urls) if urls else 0
        turn = urls[first:] + urls[:first]
        return iter(sorted(turn, key=lambda url: self._failed[url] > now))

    def failed(self, url, why):
        log.warning("%s: %s", url, why or type(why).__name__)
        self._failed[url] = time.monotonic() + LEFT_OUT


class Proxy:
    def __init__(self, prefill, decode, *, prefill_seconds, at_once, decode_node=""):
        self._pushed = {"decode_node": decode_node} if decode_node else {}
        self._prefill, self._decode = Servers(prefill), Servers(decode)
        self._prefill_time = ClientTimeout(total=prefill_seconds, sock_connect=2.0)
        # An answer may take as long as it takes; its client can hang up.
        self._decode_time = ClientTimeout(total=None, sock_connect=2.0)
        self._room = asyncio.Semaphore(at_once)

    async def session(self, _):
        # vLLM hangs up after five idle seconds, perhaps just when the next request comes.
        async with ClientSession(connector=TCPConnector(limit=0, force_close=True)) as session:
            self._session = session
            yield

    async def complete(self, request):
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise web.HTTPBadRequest(text="a request is a JSON object")
        # What to load from where is for servers to say to each other.
        said = body.pop("kv_transfer_params", None)
        said = said.get("hexkv") if isinstance(said, dict) else None
        said = said if isinstance(said, dict) else {}
        own = {name: said[name] for name in ("read", "write") if name in said}
        headers = {k: v for k, v in request.headers.items() if k.lower() not in OWN}
        async with self._room:
            found = await self._prefilled(request.path, body, own, headers)
            if isinstance(found, web.Response):
                return found
            return await self._decoded(request, body | found, headers)

    async def _prefilled(self, path, body, own, headers):
        """What to tell the decoder; a response, where the request is refused."""
        asked = {k: v for k, v in body.items() if k not in ("stream_options", "min_tokens")}
        asked |= {"stream": False, "max_tokens": 1}
        if "max_completion_tokens" in body:
            asked["max_completion_tokens"] = 1
        params = {"do_remote_decode": True, "do_remote_prefill": False}
        told = own | self._pushed
        asked["kv_transfer_params"] = params | ({"hexkv": told} if told else {})
        for url in self._prefill:
            try:
                async with self._session.post(
                    url + path, json=asked, headers=headers, timeout=self._prefill_time
                ) as answer:
                    if 400 <= answer.status < 500:
                        data, kind = await answer.read(), answer.content_type
                        return web.Response(status=answer.status, body=data, content_type=kind)
                    answer.raise_for_status()
                    found = (await answer.json()).get("kv_transfer_params")
            except (ClientError, OSError, ValueError, AttributeError, TimeoutError) as error:
                self._prefill.failed(url, error)
                continue
            # A decoder finds KV by its key, also without parameters.
            found = found if isinstance(found, dict) else {"do_remote_prefill": True}
            if own:
                found["hexkv"] = own | (found.get("hexkv") or {})
            return {"kv_transfer_params": found}
        return {"kv_transfer_params": {"hexkv": own}} if own else {}

    async def _decoded(self, request, body, headers):
        for url in self._decode:
            try:
                answer = await self._session.post(
                    url + request.path, json=body, headers=headers, timeout=self._decode_time
                )
                async with answer:
                    if answer.status < 500:
                        return await self._passed_on(request, answer, url)
                    answer.raise_for_status()
            except (ClientError, OSError, TimeoutError) as error:
                self._decode.failed(url, error)
        raise web.HTTPBadGateway(text="no server answers")

    async def _passed_on(self, request, answer, url):
        """The answer of a server, part by part. From the first one on no other server is asked."""
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in OWN}
        response = web.StreamResponse(status=answer.status, headers=kept)
        parts = answer.content.iter_any()
        try:
            await response.prepare(request)
            while part := await self._next(parts, url):
                await response.write(part)
            if part is None:
                # The client is to see that its answer is not whole.
                if request.transport is not None:
                    request.transport.abort()
            else:
                await response.write_eof()
        except OSError as error:
            log.info("a client is gone: %s", error)
        return response

    async def _next(self, parts, url):
        """The next part of an answer; ``None`` if the server broke off, empty at its end."""
        try:
            return await anext(parts, b"")
        except (ClientError, OSError, TimeoutError) as error:
            self._decode.failed(url, error)
            return None

    async def forward(self, request):
        """What any server can say."""
        for url in self._decode:
            try:
                async with self._session.get(url + request.path, timeout=self._prefill_time) as got:
                    data, kind = await got.read(), got.content_type
                    return web.Response(status=got.status, body=data, content_type=kind)
            except (ClientError, OSError, TimeoutError) as error:
                self._decode.failed(url, error)
        raise web.HTTPServiceUnavailable(text="no server answers")

    def app(self):
        app = web.Application(client_max_size=LARGEST)
        app.cleanup_ctx.append(self.session)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_get("/v1/models", self.forward)
        app.router.add_get("/health", self.forward)
        return app


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("--prefill", action="append", default=[], metavar="URL")
    parse.add_argument("--decode", action="append", required=True, metavar="URL")
    parse.add_argument(
        "--decode-node", default="", metavar="NAME", help="the decoders' node, to be pushed to"
    )
    parse.add_argument("--host", default="127.0.0.1")
    parse.add_argument("--port", type=int, default=8000)
    parse.add_argument("--prefill-seconds", type=float, default=60.0)
    parse.add_argument("--at-once", type=int, default=256, help="requests under way; others wait")
    said = parse.parse_args()
    logging.basicConfig(level=logging.INFO)
    proxy = Proxy(
        said.prefill,
        said.decode,
        prefill_seconds=said.prefill_seconds,
        at_once=said.at_once,
        decode_node=said.decode_node,
    )
    # A client that hangs up cancels its request.
    web.run_app(proxy.app(), host=said.host, port=said.port, handler_cancellation=True)


if __name__ == "__main__":
    main()
