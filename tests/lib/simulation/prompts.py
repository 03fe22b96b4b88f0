"""Prompts that share prefixes, what the model would compute for them, and a device to see it."""

from functools import cache
from hashlib import blake2b

from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import SHA256, NamespaceHasher
from hexkv.core.keys.tokens import pack
from hexkv.ports import DType, Finished, KVLayout, Namespace, frame_bytes

CHUNK = 4
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=8, value_width=8)
CHUNK_BYTES = LAYOUT.chunk_bytes(CHUNK)
FRAME = frame_bytes(CHUNK_BYTES)
SALT = "tenant-a"
NAMESPACES = (
    Namespace("toy", LAYOUT),
    Namespace("toy", LAYOUT, salt=SALT),
    Namespace("toy", LAYOUT, salt=SALT, lora="painter"),  # whose the keys are shows at first use
)
LONGEST = 6 * CHUNK + 2


def _family():
    """Prompts of up to six chunks and a tail, most of them sharing a beginning with others."""
    trunk = [list(range(100 * t, 100 * t + LONGEST)) for t in range(3)]
    for t, tokens in enumerate(trunk):
        for keep in (0, 1, 2, 4):
            branch = [1000 * (t + 1) + 10 * keep + i for i in range(LONGEST)]
            whole = tokens[: keep * CHUNK] + branch
            for length in (LONGEST, 5 * CHUNK, 3 * CHUNK + 1, CHUNK):
                yield tuple(whole[:length])


PROMPTS = tuple(dict.fromkeys(_family()))


@cache
def computed(tokens, tenant):
    """The KV of each chunk of a prompt: it depends on every token up to its end."""
    chunks = []
    for end in range(CHUNK, len(tokens) + 1, CHUNK):
        text = f"{tenant} {tokens[:end]}".encode()
        chunks.append((blake2b(text).digest() * (CHUNK_BYTES // 64 + 1))[:CHUNK_BYTES])
    return chunks


@cache
def keys(tokens, tenant):
    """What the chunks of a prompt are called."""
    return tuple(_keyer(tenant).name(pack(tokens)))


@cache
def _keyer(tenant):
    return NamespaceHasher(NAMESPACES[tenant], SHA256, PrefixChunker(CHUNK))


class Window:
    """A request's window on a device. Copies take as long as *pause* says."""

    layout = LAYOUT

    def __init__(self, tokens, tenant, pause):
        self.tokens = len(tokens)
        self.gathered = 0
        self._computed = computed(tokens, tenant)
        self._held = {}
        self._pause = pause

    def gather(self, spans, layers=None):
        self._pause()
        for start, end, data in spans:
            assert end - start == CHUNK
            data[:] = self._computed[start // CHUNK]
            self.gathered += 1
        self._pause()
        return Finished()

    def scatter(self, spans, layers=None):
        self._pause()
        for start, _, data in spans:
            self._held[start // CHUNK] = bytes(data)
        self._pause()
        return Finished()

    def wrong(self, first, end):
        """The first chunk of those before token *end*, from *first* on, that is not as computed."""
        for i in range(first // CHUNK, end // CHUNK):
            if self._held.get(i) != self._computed[i]:
                return i
        return None
