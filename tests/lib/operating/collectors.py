"""A collector of traces: OTLP over HTTP at a port of its own, read with OpenTelemetry's classes."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from processes import held_port

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
"""The example of W3C's page."""


@dataclass
class Seen:
    """One span, as a collector has it."""

    name: str
    trace: str
    span: str
    parent: str
    begun: float
    ended: float
    said: dict
    resource: dict
    scope: str
    """Who made it."""


@dataclass
class Collector:
    """What it got, and what it is to answer."""

    port: int
    spans: list[Seen] = field(default_factory=list)
    requests: list[dict] = field(default_factory=list)
    """Headers of each."""

    answers: list[int] = field(default_factory=list)
    """Statuses of the next requests; then 200."""

    stalled: bool = False
    """True: it takes no word before :attr:`going` is set."""

    going: Event = field(default_factory=Event)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def of(self, name):
        """The spans of that name."""
        return [span for span in self.spans if span.name == name]

    def take(self, handler):
        if self.stalled:
            self.going.wait(60.0)
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.requests.append(dict(handler.headers))
        status = self.answers.pop(0) if self.answers else 200
        if status == 200:
            self._keep(ExportTraceServiceRequest.FromString(body))
        answer = ExportTraceServiceResponse().SerializeToString()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/x-protobuf")
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)

    def _keep(self, request):
        for group in request.resource_spans:
            resource = values(group.resource.attributes)
            for scope in group.scope_spans:
                for span in scope.spans:
                    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                    times = (span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9)
                    said = values(span.attributes)
                    self.spans.append(
                        Seen(span.name, *ids, *times, said, resource, scope.scope.name)
                    )


def values(attributes):
    return {one.key: plain(one.value) for one in attributes}


def plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting():
    """A collector that runs."""
    collector = Collector(held_port())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            assert self.path == "/v1/traces"
            collector.take(self)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", collector.port), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        collector.going.set()
        server.shutdown()
        thread.join()
        server.server_close()
