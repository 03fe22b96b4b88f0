"""A tier that reads from peers, in virtual time: they die, freeze, crawl and lie, by a seed.

The tier, the directory and the codec of frames are the production ones; a channel without a wire
stands for the network. What a peer gives is what its fault makes of a whole frame.
"""

from random import Random

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.local import LocalDirectory
from hexkv.adapters.peer.store import PeerStore
from hexkv.contracts.channel.double import is_frame
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key
from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.peers.questions import BUSY
from hexkv.ports import (
    KEY_BYTES,
    PAGE,
    Corrupt,
    CorruptFrame,
    Deadline,
    DType,
    Failed,
    FrameHeader,
    Hit,
    KVLayout,
    Member,
    Miss,
    PeerAccess,
    Reason,
    Report,
    StoreUnreachable,
    TimedOut,
    frame_bytes,
)

CODEC = FrameCodec(CRC32)
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=32)
TOKENS = 16
SIZE = frame_bytes(LAYOUT.chunk_bytes(TOKENS))
RATE = 1e9
DEADLINE = 1.0
OVERRUN = 0.05
BACK = 30.0

NETWORK = ["stopped", "a byte a second", "hears nothing", "is not heard", "cut off"]
LIES = ["other bytes", "other chunks", "other sizes", "stale generation"]
DIRECTORY = ["", "dead", "wrong"]


def whole(name):
    """The frame of a chunk, sealed."""
    frame = memoryview(bytearray(Random(name).randbytes(SIZE)))
    size = SIZE - PAGE
    CODEC.seal(frame, FrameHeader(chunk_key(name), "toy", TOKENS, "raw", size, size, 0.0))
    return bytes(frame)


class Holder:
    """A peer: what it holds, and what is wrong with it."""

    def __init__(self, number):
        self.name, self.life, self.fault = f"peer {number}", 0, ""
        self.alive = False
        self.chunks, self.sequence = set(), 0

    @property
    def member(self):
        return Member(self.name, self.life, self.name)


class Access:
    """A channel to all of them, and a directory that may be broken."""

    def __init__(self, play):
        self.play = play

    def read(self, peer, wanted, sink, deadline):
        play, holder = self.play, self.play.holders[peer.address]
        if not holder.alive:
            return [Failed(StoreUnreachable("refused"))] * len(wanted)
        if holder.fault in NETWORK:
            with sink.room(0, SIZE).lease.share("channel"):  # some of it came, perhaps
                play.clock.advance(deadline.remaining())
            return [TimedOut()] * len(wanted)
        if peer.generation != holder.life or holder.fault == "stale generation":
            return [Failed(StoreUnreachable("started anew"))] * len(wanted)
        return [self.give(holder, i, it.key, sink, deadline) for i, it in enumerate(wanted)]

    def give(self, holder, index, key, sink, deadline):
        """One chunk; what channels look at themselves, they see."""
        play = self.play
        play.clock.advance(min(SIZE / RATE, deadline.remaining()))
        if deadline.expired:
            return TimedOut()
        if key not in holder.chunks:
            return Miss()
        frame = play.lied(holder, bytearray(play.frames[key]))
        if len(frame) != SIZE:
            return Failed(StoreUnreachable("nonsense"))
        there = sink.room(index, len(frame))
        with there.lease.share("channel"):
            there.into[:] = frame
        return Hit(SIZE) if is_frame(there.into, key) else Corrupt("another chunk")

    def ask(self, peer, question, deadline):
        holder = self.play.holders[peer.address]
        if not holder.alive or holder.fault:
            self.play.clock.advance(deadline.remaining() if holder.alive else 0.0)
            raise StoreUnreachable("no answer")
        assert question.startswith(BUSY)
        return bytes((len(question) - len(BUSY)) // KEY_BYTES)

    def locate(self, keys, deadline):
        if self.play.directory_is == "dead":
            self.play.clock.advance(deadline.remaining())
            raise StoreUnreachable("no answer")
        if self.play.directory_is == "wrong":
            return [[one.member for one in self.play.holders.values() if one.life]] * len(keys)
        return self.play.directory.locate(keys, deadline)


class PeerPlay:
    """All of it. :meth:`step` does one thing, and checks whatever is read."""

    def __init__(self, seed, holders=5, chunks=40):
        self.random, self.clock = Random(seed), ManualClock()
        self.frames = {chunk_key(name): whole(name) for name in map(str, range(chunks))}
        self.directory = LocalDirectory(Cell(self.clock, members=64))
        self.directory_is, self.told = "", self.clock.now()
        self.holders = {one.name: one for one in map(Holder, range(holders))}
        access = Access(self)
        own = PeerAccess(Member("reader", 1, "reader"), access, access)
        self.store = PeerStore(own, access, self.clock)
        self.hits = self.damaged = self.misses = self.faults = 0
        for holder in self.holders.values():
            self.start(holder)

    def start(self, holder):
        """Another life of it."""
        holder.alive, holder.fault, holder.life, holder.sequence = True, "", holder.life + 1, 0
        holder.chunks = set(self.random.sample(sorted(self.frames), len(self.frames) // 3))
        assert self.directory.join(holder.member, [sorted(holder.chunks)], self.soon())

    def lied(self, holder, frame):
        """What leaves *holder* for that frame."""
        match holder.fault:
            case "other bytes" if self.random.random() < 0.5:
                frame[self.random.randrange(SIZE)] ^= 1 << self.random.randrange(8)
            case "other bytes":
                frame[PAGE:] = self.random.randbytes(SIZE - PAGE)
            case "other chunks":
                return self.frames[self.random.choice(sorted(self.frames))]
            case "other sizes":
                return frame[: self.random.choice([0, PAGE, SIZE - 1, SIZE])]
        return frame

    def step(self):
        """One thing that happens; then some chunks are read."""
        holder = self.random.choice(list(self.holders.values()))
        match self.random.choices(["fault", "mend", "die", "change", "directory"], [3, 3, 1, 6, 1])[
            0
        ]:
            case "fault" if holder.alive:
                holder.fault = self.random.choice([*NETWORK, *LIES])
                self.faults += 1
            case "mend":
                self.mend(holder)
            case "die":
                holder.alive = False
            case "change" if holder.alive and holder.fault not in NETWORK:
                self.change(holder)
            case "directory":
                self.directory_is = self.random.choice(DIRECTORY)
        self.pass_time(self.random.choice([0.0, 0.01, 0.1, 0.5, 2.0]))
        self.read(self.random.sample(sorted(self.frames), self.random.randrange(1, 9)))

    def mend(self, holder):
        if not holder.alive:
            self.start(holder)
        holder.fault = ""

    def change(self, holder):
        """It stores and evicts, and says so."""
        some = set(self.random.sample(sorted(self.frames), 4))
        added, removed = some - holder.chunks, some & holder.chunks
        holder.chunks ^= some
        holder.sequence += 1
        report = Report(holder.sequence, sorted(added), sorted(removed))
        if not self.directory.report(holder.member, report, self.soon()):
            holder.sequence = 0
            assert self.directory.join(holder.member, [sorted(holder.chunks)], self.soon())

    def pass_time(self, seconds):
        """Who lives and is heard gives signs of life meanwhile."""
        until = self.clock.now() + seconds
        while True:
            self.clock.advance(max(0.0, min(0.5, until - self.clock.now())))
            for one in self.holders.values():
                heard = one.alive and one.fault not in NETWORK
                if heard and not self.directory.heartbeat(one.member, one.sequence, self.soon()):
                    one.sequence = 0
                    assert self.directory.join(one.member, [sorted(one.chunks)], self.soon())
            if self.clock.now() >= until:
                return

    def read(self, keys):
        """As the core does: look, read, verify, set aside what is damaged. Which came."""
        deadline = Deadline.after(self.clock, DEADLINE)
        came, sink = set(), ListSink()
        try:
            here = self.store.contains(keys, deadline)
            keys = [key for key, is_here in zip(keys, here, strict=True) if is_here]
            outcomes = self.store.read(keys, sink, deadline) if keys else []
        except StoreUnreachable:
            outcomes = []
        late = self.clock.now() - deadline.at
        assert late <= OVERRUN, f"{late:.3f} s beyond the deadline"
        for i, (key, outcome) in enumerate(zip(keys, outcomes, strict=False)):
            if not isinstance(outcome, Hit):
                assert outcome != Miss(Reason.REFUSED)
                self.misses += 1
                continue
            data = memoryview(sink.data(i))
            try:
                CODEC.open(data, key)
            except CorruptFrame:
                self.damaged += 1
                self.store.quarantine([key], deadline)
                continue
            assert bytes(data) == self.frames[key], "wrong KV"
            came.add(key)
            self.hits += 1
        return came

    def heal(self):
        """Nothing is broken any more: all that anybody holds comes again, soon enough."""
        self.directory_is = ""
        for holder in self.holders.values():
            self.mend(holder)
        mended = self.clock.now()
        held = set().union(*(holder.chunks for holder in self.holders.values()))
        while held - self.read(sorted(held)):
            self.pass_time(0.1)
            assert self.clock.now() - mended <= BACK, "it does not come back"

    def soon(self):
        return Deadline.after(self.clock, 60.0)
