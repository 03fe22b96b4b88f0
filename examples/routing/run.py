"""Two engines behind a router that knows what their caches hold: requests go where their prefix is.

    python examples/routing/run.py --router /path/to/vllm-router

The engines are :mod:`engine` beside this file. Conversations are begun at one engine or the other,
past the router; their next turns go through it. Needs vllm-router (pip install vllm-router==0.1.17)
in any environment.
"""

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, socket

CONVERSATIONS = 12
BLOCK = 16
PATIENCE = 120


_HELD = []


def held_port():
    """A port for a server of ours: the kernel gives it to no other socket that asks for any."""
    held = socket()
    held.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)  # so that it is refused to no server that does so
    held.bind(("127.0.0.1", 0))
    _HELD.append(held)
    return held.getsockname()[1]


def ask(port, tokens):
    """The answer of a server, and which engine has given it."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = json.dumps({"model": "hexkv-text", "prompt": tokens, "max_tokens": 1})
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise OSError(f"{answer.status}: {said!r}")
        return json.loads(said)
    finally:
        connection.close()


def started(stack, command, name, folder):
    """A process that ends with *stack*."""
    log = stack.enter_context((folder / f"{name}.log").open("w"))
    process = subprocess.Popen(command, stdout=log, stderr=log)

    def end():
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)
    return process


def answering(port, process, path="/health"):
    """Wait until a server answers."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.2)
        finally:
            connection.close()
    raise SystemExit(f"nothing answers at port {port}")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--router", default="vllm-router", help="the command")
    options.add_argument("--logs", type=Path, default=Path.cwd())
    given = options.parse_args()
    with ExitStack() as stack:
        engines = {}
        sources = []
        for number in range(2):
            port, events, replay = held_port(), held_port(), held_port()
            command = [sys.executable, str(Path(__file__).with_name("engine.py"))]
            command += ["--port", str(port), "--events", f"127.0.0.1:{events}"]
            command += ["--replay", f"127.0.0.1:{replay}"]
            engines[port] = started(stack, command, f"engine{number}", given.logs)
            url = f"http://127.0.0.1:{port}"
            sources += ["--kv-event-source", f"{url}=tcp://127.0.0.1:{events}"]
            sources += ["--kv-event-replay-source", f"{url}=tcp://127.0.0.1:{replay}"]
        for port, process in engines.items():
            answering(port, process)
        ports = list(engines)
        # Before the router is there: it asks for what it missed.
        prompts = [list(f"Conversation {n}. ".encode() * 12) for n in range(CONVERSATIONS)]
        for n, tokens in enumerate(prompts):
            ask(ports[n % 2], tokens)
        entrance = held_port()
        command = [given.router, "--host", "127.0.0.1", "--port", str(entrance)]
        command += ["--policy", "kv_aware", "--worker-urls"]
        command += [f"http://127.0.0.1:{port}" for port in ports]
        command += [*sources, "--kv-event-block-size", str(BLOCK), "--kv-event-model", "hexkv-text"]
        command += ["--worker-startup-check-interval", "1", "--prometheus-port", str(held_port())]
        router = started(stack, command, "router", given.logs)
        answering(entrance, router)
        time.sleep(5)  # for what the engines publish anew
        right, hits = 0, []
        for n, tokens in enumerate(prompts):
            said = ask(entrance, [*tokens, *b"And then?"])
            port = int(said["system_fingerprint"].split()[-1])
            hits.append(said["usage"]["prompt_tokens_details"]["cached_tokens"])
            right += port == ports[n % 2]
            print(f"{n:2}: begun at engine {n % 2}, answered by {ports.index(port)},", end=" ")
            print(f"{hits[-1]} of {len(tokens)} tokens not computed again")
        print(f"{right} of {CONVERSATIONS} went to where their beginning is")
    return 0 if right == CONVERSATIONS and min(hits) > 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
