"""Dynamo's standalone indexer as a process, in an environment of its own, and batches it loses."""

import json
import subprocess
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest
import zmq

from processes import PATIENCE, held_port, listening_ports, until

PYTHON = Path(__file__).parents[3] / ".venv/routers/bin/python"
MODEL = "toy"


class Indexer:
    """Asked over HTTP. It listens on every address: there is no setting for that."""

    def __init__(self, log):
        if not PYTHON.exists():
            pytest.skip("needs Dynamo's indexer: make routers")
        self.port = held_port()
        command = [PYTHON, "-m", "dynamo.indexer", "--port", str(self.port), "--threads", "1"]
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self):
        until(self._up)
        assert self.port in listening_ports(self.process.pid)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def _up(self):
        assert self.process.poll() is None, self._log.read_text()
        with suppress(OSError):
            return self.ask("GET", "/workers") is not None
        return False

    def ask(self, method, path, body=None):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            said = None if body is None else json.dumps(body)
            connection.request(method, path, said, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status < 300, text
            return json.loads(text)
        finally:
            connection.close()

    def register(self, instance, events, replay, block):
        """Have it listen to *events*, and ask *replay* for what it misses."""
        place = {"endpoint": f"tcp://{events}", "replay_endpoint": f"tcp://{replay}"}
        what = {"instance_id": instance, "model_name": MODEL, "block_size": block}
        self.ask("POST", "/register", place | what)

    def match(self, tokens):
        """For each instance the tokens that it has from the beginning: in memory, and in all."""
        found = self.ask("POST", "/query", {"token_ids": list(tokens), "model_name": MODEL})
        rows = found["instances"].items()
        return {int(number): (row["cpu"], row["longest_matched"]) for number, row in rows}


@contextmanager
def lossy(events, loses):
    """The address of a line to *events* that loses batches: the rule gets how many came."""
    context, port = zmq.Context(), held_port()
    source, sink = context.socket(zmq.SUB), context.socket(zmq.PUB)
    source.setsockopt(zmq.SUBSCRIBE, b"")
    source.connect(f"tcp://{events}")
    sink.bind(f"tcp://127.0.0.1:{port}")
    lost = []
    stopping = []

    def carry():
        came = 0
        while not stopping:
            if source.poll(50):
                message = source.recv_multipart()
                came += 1
                if loses(came):
                    lost.append(came)
                else:
                    sink.send_multipart(message)

    thread = Thread(target=carry)
    thread.start()
    try:
        yield f"127.0.0.1:{port}", lost
    finally:
        stopping.append(True)
        thread.join()
        context.destroy(linger=0)
