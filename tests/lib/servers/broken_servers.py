"""Servers of the ``lm://`` wire that each break one promise, on top of one that keeps all.

Threads and a dictionary, written from the wire alone.
"""

import socket
import struct
from contextlib import suppress
from threading import Lock, Thread

PUT, GET, EXIST, LIST, HEALTH = range(1, 6)
REQUEST = struct.Struct("=9i150s")
LONGEST = 256 << 20


class Server:
    """Keeps every promise. Listens at a port of 127.0.0.1, or a free one, until it is left."""

    def __init__(self, port=0):
        self.port = port

    def __enter__(self):
        self.values = {}
        self.lock = Lock()
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
        self.connections = set()
        Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def address(self):
        return self.listener.getsockname()

    def accept(self):
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections.add(connection)
                self.meet(connection)

    def meet(self, connection):
        Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection, suppress(OSError, EOFError, ValueError):
            while True:
                self.answer(connection, *self.parse(exactly(connection, REQUEST.size)))
        self.connections.discard(connection)

    def parse(self, data):
        command, length, form, dtype, location, *shape, key = REQUEST.unpack(data)
        if command not in range(1, 6) or not 0 <= length <= LONGEST:
            raise ValueError(command)
        return command, self.name(key), length, (form, dtype, *shape, location)

    def name(self, key):
        return key.rstrip()

    def answer(self, connection, command, key, length, tensor):
        if command == PUT:
            self.put(connection, key, length, tensor)
        elif command == GET:
            found, data = self.values.get(key, (None, b""))
            tell(connection, found is not None, found or (0,) * 7, self.given(data))
        elif command == LIST:
            tell(connection, True, (0,) * 7, b"\n".join(self.values))
        else:
            tell(connection, command == HEALTH or key in self.values, (0,) * 7)

    def put(self, connection, key, length, tensor):
        self.keep(key, tensor, exactly(connection, length))

    def keep(self, key, tensor, data):
        self.values[key] = tensor, data

    def given(self, data):
        return data


def tell(connection, found, tensor, data=b""):
    head = struct.pack("=9i", 200 if found else 400, len(data), *tensor)
    connection.sendall(head)
    connection.sendall(data)


def exactly(connection, size):
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


# One class per flaw from here on. The docstring says what is wrong.


class DropsTheLastByte(Server):
    """A fencepost on the way out."""

    def given(self, data):
        return data[:-1]


class FoldsCase(Server):
    """Keys are compared as a file system of old would."""

    def name(self, key):
        return super().name(key).lower()


class CutsLongKeys(Server):
    """A buffer for keys is a little short."""

    def name(self, key):
        return super().name(key[:128])


class ForgetsTheTensor(Server):
    """Only bytes are kept."""

    def keep(self, key, tensor, data):
        super().keep(key, (1, 2, 0, 0, 0, 0, 0), data)


class KeepsTheLongerEnd(Server):
    """A shorter value is written over the beginning of a longer one."""

    def keep(self, key, tensor, data):
        _, old = self.values.get(key, (None, b""))
        super().keep(key, tensor, data + old[len(data) :])


class PublishesBeforeItHasAll(Server):
    """What has come of a value is already shown."""

    def put(self, connection, key, length, tensor):
        data = bytearray()
        while len(data) < length:
            part = connection.recv(min(length - len(data), 1 << 16))
            if not part:
                raise EOFError
            data += part
            self.keep(key, tensor, bytes(data).ljust(length, b"\0"))
        self.keep(key, tensor, bytes(data))


class AnswersAMissWithSilence(Server):
    """A client that asks for what is not there waits for ever."""

    def answer(self, connection, command, key, length, tensor):
        if command != GET or key in self.values:
            super().answer(connection, command, key, length, tensor)


class ServesOneAfterTheOther(Server):
    """No thread per connection: whoever is silent holds up all behind."""

    def meet(self, connection):
        self.serve(connection)


class AnswersUnderALock(Server):
    """A client that does not listen holds the lock."""

    def answer(self, connection, command, key, length, tensor):
        if command == PUT:
            super().answer(connection, command, key, length, tensor)
        else:
            with self.lock:
                super().answer(connection, command, key, length, tensor)


class DiesOfAMalformedRequest(Server):
    """One bad request ends the whole server."""

    def parse(self, data):
        try:
            return super().parse(data)
        except ValueError:
            self.__exit__()
            raise


class IgnoresWhatItDoesNotKnow(Server):
    """An unknown command is dropped, and nobody is told; the end of the connection, too."""

    def serve(self, connection):
        try:
            while True:
                data = exactly(connection, REQUEST.size)
                try:
                    asked = self.parse(data)
                except ValueError:
                    continue
                self.answer(connection, *asked)
        except (OSError, EOFError):
            pass  # and the connection stays


class EmptiesBeforeItKeeps(Server):
    """What one client puts makes room by throwing out what another did."""

    def keep(self, key, tensor, data):
        if len(self.values) > 5:
            self.values.pop(next(iter(self.values)))
        super().keep(key, tensor, data)
