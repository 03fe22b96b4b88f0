"""A server among strangers, beside another one, and killed."""

import os
import socket
import struct
from contextlib import ExitStack, closing, suppress

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.adapters.directory.local import LocalDirectory
from hexkv.adapters.directory.plugin import StaticSettings, _open_static, hexkv_adapters
from hexkv.adapters.directory.replicas import ReplicatedDirectory
from hexkv.adapters.directory.static import StaticDirectory
from hexkv.adapters.directory.wire import (
    RequestKind,
    pack_members,
    unpack_members,
    unpack_request,
)
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.wire import message
from hexkv.adapters.net.tls import Trust
from hexkv.contracts.directory._base import batches, holders, life, some, soon
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.kit.cases import each
from hexkv.peers.lives import Life
from hexkv.peers.reporting import Reporter
from hexkv.plugins.__main__ import main
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.secret import Secret
from hexkv.plugins.configuration.settings import parse_settings
from hexkv.plugins.observing.held import HeldChunks
from hexkv.plugins.spec import OpenContext
from hexkv.ports import (
    SILENT_HEARTBEATS,
    ConfigError,
    Deadline,
    Member,
    Report,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnreachable,
    SupportsReplicas,
)
from processes import PATIENCE, freeze, held_port
from servers.directory_servers import SECRET, DirectoryProcess, Served


def test_who_does_not_know_the_secret_learns_nothing(served, client):
    with pytest.raises(StoreUnreachable, match="another secret"):
        client(served.address, secret=b"some other secret").members(soon())
    assert client(served.address).members(soon()) == []


def test_a_refused_client_is_one_line_of_the_directorys_log(served, client, caplog):
    for _ in range(3):
        with pytest.raises(StoreUnreachable, match="another secret"):
            client(served.address, secret=b"some other secret").members(soon())
    client(served.address).members(soon())
    lines = [text for text in caplog.messages if text.startswith("directory: a client is refused")]
    assert len(lines) == 1
    assert "secret" in lines[0]


@pytest.fixture
def configured():
    """Opens directories as a configuration does; closes them."""
    specs = {spec.name: spec for spec in hexkv_adapters()}
    with ExitStack() as opened:

        def configured(name, **wanted):
            made = parse_settings(specs[name], wanted)
            directory = specs[name].open(made, OpenContext(SystemClock()))
            opened.callback(directory.close)
            return directory

        yield configured


def test_nodes_of_a_list_know_each_other_by_certificates_and_a_secret(tmp_path, configured, client):
    authority, files = trustme.CA(), [tmp_path / "ca.pem", tmp_path / "node.pem"]
    authority.cert_pem.write_to_path(str(files[0]))
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(files[1]))
    ca, certificate = map(str, files)
    places = [f"127.0.0.1:{held_port()}" for _ in range(2)]
    tls = {"tls": True, "tls_ca": ca, "tls_certificate": certificate, "tls_client_ca": ca}
    ada, bob = (
        configured("static", listen=mine, peers=[other], secret=SECRET.decode(), **tls)
        for mine, other in (places, places[::-1])
    )
    keys = some(3)
    assert ada.join(life("ada"), batches(keys[:1]), soon())
    assert bob.join(life("bob"), batches(keys[1:2]), soon())
    assert holders(ada, keys) == holders(bob, keys) == [["ada"], ["bob"], []]
    assert set(ada.members(soon())) == {life("ada"), life("bob")}
    place = Address.parse(places[0])
    for stranger in (Trust(ca), None):
        context = stranger.context() if stranger else None
        with pytest.raises(StoreUnreachable):
            client(place, tls=context).members(soon())


def test_a_second_one_is_told_by_itself(served, clock, configured):
    with Served(clock) as second:
        places = {"address": str(served.address), "second": str(second.address)}
        both = configured("embedded", secret=SECRET.decode(), **places)
        assert isinstance(both, SupportsReplicas)
        first, other = both.replicas
        assert first.join(life("ada"), [], soon())
        assert other.members(soon()) == []
        assert other.join(life("ada"), [], soon())
        assert both.members(soon()) == [life("ada")]


@pytest.mark.thorough
@settings(max_examples=30)
@given(data=st.binary(min_size=1, max_size=400))
def test_bytes_of_any_kind_are_a_message_or_an_error(data):
    """Nothing is taken for a size that no message has."""
    with suppress(BadMessage):
        list(unpack_members(data))
    try:
        head, text, tags = unpack_request(data)
    except BadMessage:
        return
    assert (len(text), len(tags)) == (head.text, head.first + head.second)


@each(
    "members",
    [
        [],
        [(3, Member("a", 1))],
        [
            (0, Member("\u00e4" * 100, 2**63 - 1, "h" * 1024, "i" * 255)),
            (1, Member("b", 2, "", "j")),
        ],
    ],
)
def test_members_come_as_they_were_packed(members):
    assert list(unpack_members(pack_members(members))) == members


def test_garbage_after_the_greeting_ends_that_connection_alone(served, client):
    keys, good = some(2), client(served.address)
    assert good.join(life("ada"), batches(keys), soon())
    bad = client(served.address)
    with bad._pool.connection(soon()) as wire:
        wire.stream.send([os.urandom(4000)], soon())
        with pytest.raises((StoreError, AssertionError)):
            assert wire.stream.take(1, soon()) == b"something"
    with bad._pool.connection(soon()) as wire:
        huge = struct.pack("<BBHIIqQ", RequestKind.LOCATE, 0, 0, 2**31, 2**31, 0, 0)
        huge = message(RequestKind.LOCATE, 1, 0, huge)
        wire.stream.send([huge], soon())
        with pytest.raises(StoreUnreachable):
            wire.stream.take(1, soon())
    assert holders(good, keys) == [["ada"]] * 2


def test_a_full_directory_says_so_and_lets_the_longest_silent_one_go(clock, client, caplog):
    with Served(clock, members=2) as served:
        directory = client(served.address)
        assert directory.join(life("ada"), [], soon())
        clock.advance(1.0)
        assert directory.join(life("bob"), batches(some(1)), soon())
        for _ in range(3):
            with pytest.raises(StoreFull):
                directory.join(life("cyd"), [], soon())
        (line,) = [text for text in caplog.messages if "cyd" in text]
        assert (
            line
            == "directory: node 'cyd' is refused: StoreFull: the directory has 2 members already"
        )
        clock.advance(2.5)  # ada is silent for too long by now
        assert directory.join(life("cyd"), batches(some(1)), soon())
        assert "directory: node 'cyd' is admitted after " in caplog.messages[-1]
        assert holders(directory, some(1)) == [["bob", "cyd"]]
        assert not directory.heartbeat(life("ada"), 0, soon())


@pytest.mark.thorough
def test_chunks_beyond_the_bound_are_left_out_and_counted(clock, client):
    with Served(clock, entries=4000) as served:
        directory, keys = client(served.address), some(30_000)
        assert directory.join(life("ada"), batches(keys), soon())
        health = served.cell.health()
        assert health["chunks"] + health["dropped"] == 30_000
        assert health["chunks"] >= 4000
        assert holders(directory, keys[:2000]) == [["ada"]] * 2000, "the newest are known"


@pytest.mark.thorough
def test_where_the_first_does_not_answer_the_second_is_asked(clock, client):
    """Within the deadline; and first, from then on."""
    keys = some(2)
    with (
        Served(clock) as one,
        Served(clock) as two,
        FaultProxy((one.address.host, one.address.port)) as proxy,
    ):
        first = client(Address.parse(proxy.address))
        both = ReplicatedDirectory([first, client(two.address)], SystemClock(), PATIENCE)
        assert both.join(life("ada"), batches(keys), soon())
        proxy.stall()
        connections = proxy.traffic.connections
        found = both.locate(keys, Deadline.after(SystemClock(), 4.0))
        assert [[it.name for it in row] for row in found] == [["ada"]] * 2
        assert holders(both, keys) == [["ada"]] * 2
        assert proxy.traffic.connections == connections, "the first is not asked again"


@pytest.mark.thorough
def test_a_node_that_does_not_answer_costs_its_deadline_once(clock, client):
    """And none of the other nodes' answers."""
    keys = some(3)
    with Served(clock) as bob, Served(clock) as cyd, Served(clock) as own:
        assert client(bob.address).join(life("bob"), batches(keys[:1]), soon())
        assert client(cyd.address).join(life("cyd"), batches(keys[1:2]), soon())
        with FaultProxy((bob.address.host, bob.address.port)) as proxy:
            peers = [client(Address.parse(proxy.address)), client(cyd.address)]
            mine = LocalDirectory(own.cell)
            with closing(StaticDirectory(mine, peers, SystemClock(), pause=PATIENCE)) as static:
                assert static.join(life("ada"), batches(keys[2:]), soon())
                assert holders(static, keys) == [["bob"], ["cyd"], ["ada"]]
                proxy.stall()
                found = static.locate(keys, Deadline.after(SystemClock(), 1.0))
                assert [[it.name for it in row] for row in found] == [[], ["cyd"], ["ada"]]
                assert holders(static, keys) == [[], ["cyd"], ["ada"]], "it is not asked again"


def test_a_node_of_a_list_leaves_its_address_and_comes_back(client):
    """Meanwhile it reports to itself as before, and whoever comes may answer there."""
    keys = some(2)
    place = Address("127.0.0.1", held_port())
    settings = StaticSettings(listen=str(place), secret=Secret(SECRET.decode()))
    with closing(_open_static(settings, OpenContext(SystemClock()))) as static:
        assert static.join(life("ada"), batches(keys[:1]), soon())
        asking = client(place)
        assert holders(asking, keys) == [["ada"], []]
        static.suspend()
        static.suspend()
        with pytest.raises(StoreUnreachable):
            asking.locate(keys, soon())
        assert static.report(life("ada"), Report(1, keys[1:]), soon())
        with (
            socket.create_server((place.host, place.port)),
            pytest.raises(ConfigError, match="cannot listen"),
        ):
            static.resume()
        static.resume()
        static.resume()
        assert holders(asking, keys) == [["ada"]] * 2
        static.suspend()
    with pytest.raises(StoreError):
        static.resume()


def test_a_name_is_joined_again_by_its_proof_alone(served, clock, client):
    """While its node gives signs of life, whatever generation the other one says."""
    ada, other, keys = client(served.address), client(served.address), some(2)
    assert ada.join(life("ada"), batches(keys[:1]), soon())
    for generation in (1, 2, 2**62):
        with pytest.raises(
            StoreBusy, match="another process, or another cache of this one, is 'ada'"
        ):
            other.join(life("ada", generation), batches(keys[1:]), soon())
    assert not other.heartbeat(life("ada", 2), 0, soon())
    assert holders(other, keys) == [["ada"], []]
    assert list(other.members(soon())) == [life("ada")]
    assert ada.report(life("ada"), Report(1, keys[1:]), soon())
    assert ada.join(life("ada", 2), batches(keys[1:]), soon()), "its own later life"
    assert holders(other, keys) == [[], ["ada"]]


@each("ends", ["it is silent", "it leaves", "the directory forgets"])
def test_a_later_life_has_its_name_once_the_former_one_is_over(served, clock, client, ends):
    """It has no proof of the former one, whose process is gone."""
    former, later = client(served.address), client(served.address)
    assert former.join(life("ada"), [], soon())
    if ends == "it is silent":
        clock.advance(SILENT_HEARTBEATS * former.heartbeat_seconds)
    elif ends == "it leaves":
        former.leave(life("ada"), soon())
    else:
        served.forget()
    assert later.join(life("ada", 2), [], soon())
    assert list(later.members(soon())) == [life("ada", 2)]
    assert not former.join(life("ada"), [], soon()), "it is a life that is over"
    served.forget()


def test_a_node_whose_name_is_taken_reports_once_it_is_free(served, clock, client):
    """As one does that takes another one over: that one leaves after it has come."""
    former, member = client(served.address), life("ada", 2)
    assert former.join(life("ada"), [], soon())
    reporter = Reporter(client(served.address), Life(member), HeldChunks(), clock)
    assert 0 < reporter.turn() < float("inf")
    assert not reporter.superseded
    former.leave(life("ada"), soon())
    clock.advance(former.heartbeat_seconds)
    reporter.turn()
    (joined,) = former.members(soon())
    assert joined.name == "ada"
    assert joined.generation > 1


def test_who_shows_no_proof_joins_names_that_are_free(served, client):
    """A client of the version before has none."""
    old, others = client(served.address), client(served.address)
    old._proof = 0
    assert old.join(life("ada"), [], soon())
    for again in (old, others):
        with pytest.raises(StoreBusy):
            again.join(life("ada"), [], soon())


def test_the_command_keeps_strangers_out(tmp_path, capsys):
    short = tmp_path / "short"
    short.write_text("short")
    short.chmod(0o600)
    for words, said in (
        (["--host", "0.0.0.0"], "takes a secret"),
        (["--secret-file", str(short)], "16 bytes at least"),
    ):
        assert main(["directory", "--port", "0", *words]) == 2
        assert said in capsys.readouterr().err
    assert main(["directory", "--tls-client-ca", "x"]) == 2


@pytest.mark.thorough
def test_a_process_is_killed_and_frozen_and_comes_back(tmp_path, client):
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    keys = some(5000)
    options = ["--secret-file", str(secret), "--heartbeat", "60"]
    with DirectoryProcess(*options) as process:
        directory = client(process.address)
        assert directory.join(life("ada"), batches(keys), soon())
        assert directory.heartbeat_seconds == 60
        freeze(process.process)
        with pytest.raises(StoreUnreachable):
            directory.locate(keys[:1], Deadline.after(SystemClock(), 0.2))
        process.process.send_signal(18)
        assert holders(directory, keys) == [["ada"]] * len(keys)
        process.kill()
        with pytest.raises(StoreUnreachable):
            directory.locate(keys[:1], soon())
        process.start()
        assert holders(directory, keys[:1]) == [[]]
        assert not directory.heartbeat(life("ada"), 0, soon())
        assert directory.join(life("ada"), batches(keys), soon())
        assert holders(directory, keys) == [["ada"]] * len(keys)
