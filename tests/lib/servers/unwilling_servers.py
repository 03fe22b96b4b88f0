"""Servers that will not have a client, for each reason that there is, and change their minds.

Each is a context manager over ``(tier, server)``: the settings of a tier, and what it stands on,
which begins unwilling.
"""

import struct
from contextlib import ExitStack, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from processes import BUS, held_port
from servers import broken_servers
from servers.fixed_replies import FixedReplies
from servers.lm_servers import SMALL, Served
from servers.redis_servers import Certificates, RedisServer, redis_binary
from servers.s3_double import ACCESS_KEY, BUCKET, SECRET_KEY
from servers.s3_servers import Double


class AtOnePort:
    """Two servers that take turns: one that will do, and one that will not.

    Args:
        right: opens the first at a port, as a context manager.
        wrong: likewise, the other.
    """

    def __init__(self, right, wrong):
        self.port = held_port(BUS)
        self.address = f"127.0.0.1:{self.port}"
        self._right, self._wrong = right, wrong
        self._running = ExitStack()

    def refuse(self):
        self._put(self._wrong)

    def relent(self):
        self._put(self._right)

    def _put(self, server):
        self._running.close()
        self._running.enter_context(server(self.port))

    def __enter__(self):
        try:
            self.refuse()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._running.close()


# --- what may listen at a port ----------------------------------------------------------


@contextmanager
def http(port):
    """A web server, of nothing."""

    class Quiet(SimpleHTTPRequestHandler):
        def translate_path(self, path):
            return "/nonexistent"

        def log_message(self, *_):
            return

    with ThreadingHTTPServer(("127.0.0.1", port), Quiet) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(60)


def redis(folder, *options, **settings):
    return lambda port: RedisServer(folder, *options, port=port, **settings)


def says(reply):
    """What answers the same to everything, before it has read on, and hangs up."""

    @contextmanager
    def listen(port):
        server = FixedReplies(reply, early=True, port=port)
        try:
            yield
        finally:
            server.close()

    return listen


def hexkv(*options):
    @contextmanager
    def listen(port):
        server = Served(*SMALL, *options, port=port)
        try:
            yield
        finally:
            server.kill()

    return listen


def lmcache(port):
    """What LMCache's own server understands, and no more."""
    return broken_servers.Server(port)


def s3(*options):
    return lambda port: Double(*options, port=port)


def secret(folder, text):
    """The options of a server that asks for *text*."""
    file = folder / text.replace(" ", "-")
    file.write_text(text)
    file.chmod(0o600)
    return "--secret-file", str(file)


LATER = struct.pack("<8sHBxIQ32s", b"hexkvTCP", 2, 1, 4096, 1 << 20, bytes(32))
"""A challenge of the next version of the protocol."""


# --- Redis ------------------------------------------------------------------------------


def redis_tier(server, **settings):
    return {"store": "redis", "settings": {"url": f"redis://{server.address}"} | settings}


class Administered:
    """A Redis whose administrator changes who may do what; clients are let go at each change."""

    def __init__(self, server, refusing, relenting):
        self._server = server
        self._refusing, self._relenting = refusing, relenting

    def refuse(self):
        self._run(self._refusing)

    def relent(self):
        self._run(self._relenting)

    def _run(self, command):
        with self._server.admin() as admin:
            admin.execute_command(*command)
            if command[0] == "CONFIG":
                self._server.password = command[-1]
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def administered(refusing, relenting, **login):
    @contextmanager
    def serve(folder):
        options = ("--requirepass", "secret", "--user", "engine", "on", ">word", "~*", "+@all")
        with RedisServer(folder, *options, password="secret") as server:
            policy = Administered(server, refusing, relenting)
            policy.refuse()
            yield redis_tier(server, **login), policy

    return serve


def redis_instead_of(wrong):
    @contextmanager
    def serve(folder):
        with AtOnePort(redis(folder), wrong(folder)) as server:
            yield redis_tier(server), server

    return serve


@contextmanager
def redis_without_tls(folder):
    tls = Certificates(folder)
    right = redis(folder, binary=redis_binary(), tls=tls)
    with AtOnePort(right, redis(folder)) as server:
        url, authorities = f"rediss://{server.address}", str(tls.authorities)
        yield redis_tier(server, url=url, tls_ca=authorities), server


def redis_with_tls(folder):
    return redis(folder, binary=redis_binary(), tls=Certificates(folder))


# --- LM servers ---------------------------------------------------------------------------


def lm_server(right, wrong, store="hexkv", **settings):
    @contextmanager
    def serve(folder):
        with AtOnePort(right(folder), wrong(folder)) as server:
            tier = {"store": store, "settings": {"address": server.address} | settings}
            yield tier, server

    return serve


# --- S3 -----------------------------------------------------------------------------------


def bucket(right, wrong, **settings):
    @contextmanager
    def serve(folder):
        with AtOnePort(right, wrong) as server:
            whose = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
            where = {"url": f"s3://{BUCKET}/chunks", "endpoint": f"http://{server.address}"}
            yield {"store": "s3", "settings": whose | where | settings}, server

    return serve


UNWILLING = {
    "redis: another password": administered(
        ("CONFIG", "SET", "requirepass", "changed"),
        ("CONFIG", "SET", "requirepass", "secret"),
        password="secret",
    ),
    "redis: another password of the user": administered(
        ("ACL", "SETUSER", "engine", "resetpass", ">changed"),
        ("ACL", "SETUSER", "engine", "resetpass", ">word"),
        username="engine",
        password="word",
    ),
    "redis: the user is gone": administered(
        ("ACL", "DELUSER", "engine"),
        ("ACL", "SETUSER", "engine", "on", ">word", "~*", "+@all"),
        username="engine",
        password="word",
    ),
    "redis: the user may do nothing": administered(
        ("ACL", "SETUSER", "engine", "-@all"),
        ("ACL", "SETUSER", "engine", "+@all"),
        username="engine",
        password="word",
    ),
    "redis: a node of a cluster": redis_instead_of(
        lambda folder: redis(folder, "--cluster-enabled", "yes")
    ),
    "redis: knows none of the commands": redis_instead_of(
        lambda _: says(b"-ERR unknown command\r\n")
    ),
    "redis: an HTTP server": redis_instead_of(lambda _: http),
    "redis: a hexkv server": redis_instead_of(lambda _: hexkv()),
    "redis: TLS": redis_instead_of(redis_with_tls),
    "redis: no TLS": redis_without_tls,
    "hexkv: another secret": lm_server(
        lambda folder: hexkv(*secret(folder, "a secret of the tests")),
        lambda folder: hexkv(*secret(folder, "another secret of theirs")),
        secret="a secret of the tests",
    ),
    "hexkv: no secret": lm_server(
        lambda folder: hexkv(*secret(folder, "a secret of the tests")),
        lambda _: hexkv(),
        secret="a secret of the tests",
    ),
    "hexkv: a later version": lm_server(lambda _: hexkv(), lambda _: says(LATER)),
    "hexkv: an LMCache server": lm_server(lambda _: hexkv(), lambda _: lmcache),
    "hexkv: an HTTP server": lm_server(lambda _: hexkv(), lambda _: http),
    "hexkv: a Redis": lm_server(lambda _: hexkv(), redis),
    "lm: a server with a secret": lm_server(
        lambda _: hexkv(), lambda folder: hexkv(*secret(folder, "a secret of the tests")), "lm"
    ),
    "lm: an HTTP server": lm_server(lambda _: lmcache, lambda _: http, "lm"),
    "lm: a Redis": lm_server(lambda _: lmcache, redis, "lm"),
    "s3: another secret": bucket(s3(), s3("--secret", "another")),
    "s3: another secret, over awscrt": bucket(s3(), s3("--secret", "another"), client="awscrt"),
    "s3: another region": bucket(s3(), s3("--region", "eu-north-1")),
    "s3: a clock that is wrong by an hour": bucket(s3(), s3("--ahead", "3600")),
    "s3: an HTTP server": bucket(s3(), http),
}
