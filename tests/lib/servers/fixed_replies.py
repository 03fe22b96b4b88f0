"""A server that answers every request with the same bytes, whatever it was asked."""

import socket
from threading import Event, Thread


def s3_answer(status, code="", headers="", body=None, length=None):
    """What a server of S3 says, with *code* in its body for an error, and then hangs up."""
    text = f"<Error><Code>{code}</Code><Message>so it is</Message></Error>" if code else ""
    body = text.encode() if body is None else body
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status} X\r\n{headers}Connection: close\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


class FixedReplies:
    """Listens on a free port of loopback; each connection gets one answer, and then the end.

    Args:
        reply: what is said; nothing at all, ever, if that is empty.
        drip: seconds between two bytes of it.
        early: answer before the request was read, and hang up at once.
        port: listen there instead.
    """

    def __init__(self, reply, *, drip=0.0, early=False, port=0):
        self.reply, self.drip, self.early = reply, drip, early
        self.asked = []
        self._stop = Event()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        while not self._stop.is_set():
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer):
        with peer:
            try:
                heard = peer.recv(1 << 16)
                self.asked.append(heard.partition(b"\r\n")[0])
                if not self.reply:
                    self._stop.wait(60)
                elif self.drip:
                    for byte in self.reply:
                        peer.sendall(bytes([byte]))
                        if self._stop.wait(self.drip):
                            return
                else:
                    while not self.early and len(heard) < self._size(heard):
                        more = peer.recv(1 << 20)
                        if not more:
                            return
                        heard += more
                    peer.sendall(self.reply)
            except OSError:
                return

    @staticmethod
    def _size(heard):
        """How many bytes a request has, as far as can be told yet."""
        head, end, _ = heard.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if b"content-length:" in line]
        if not end:
            return len(heard) + 1
        return len(head) + 4 + (int(lengths[0].partition(b":")[2]) if lengths else 0)

    def close(self):
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30)
