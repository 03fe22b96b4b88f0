"""Where a process uses a GPU, the driver knows the node's memory for as long as it is mapped."""

import logging
import os

import pytest

from devices.host_registrar import HostRegistrar
from hexkv.adapters.node.memory import SharedMemory
from hexkv.contracts.chunk_cache._base import content, put, soon, specs
from hexkv.contracts.kit.cases import each
from hexkv.ports import PAGE, REGISTRATIONS
from nodes import Node
from processes import until

MIB = 1 << 20


@pytest.fixture
def node(tmp_path):
    with Node(tmp_path) as node:
        yield node


@pytest.fixture
def driver(request):
    """What registers memory that is mapped from now on, once :meth:`use` is called with it."""
    if "node" in request.fixturenames:
        request.getfixturevalue("node")  # its own mapping, in this process, is not counted
    REGISTRATIONS.leave()
    driver = HostRegistrar()
    yield driver
    REGISTRATIONS.leave()
    until(lambda: not driver.ranges)
    assert driver.wrong == []


@pytest.mark.thorough
@each("first", ["driver", "client"])
def test_each_mapping_is_registered_once_and_whole_until_its_client_is_closed(node, driver, first):
    if first == "driver":
        REGISTRATIONS.use(driver)
    clients = [node.client(), node.client()]
    REGISTRATIONS.use(driver)
    REGISTRATIONS.use(HostRegistrar(refuse=True))  # of another window
    assert [*driver.ranges.values()] == [client.pool_bytes for client in clients]
    for client in clients:
        client.close()


@pytest.mark.thorough
def test_a_node_that_comes_back_is_registered_anew_and_its_former_memory_while_it_is_leased(
    node, driver
):
    REGISTRATIONS.use(driver)
    client = node.client()
    put(client, specs(1))
    hold = client.hold(specs(1), "held", soon())
    assert hold.wait(soon())
    [former] = driver.ranges
    node.stop()
    node.start()
    until(lambda: client.connected)
    assert bytes(hold.leases[0].payload) == content(specs(1)[0])
    assert len(driver.ranges) == 3, "the former, the present, and the node's own"
    hold.release()
    del hold
    until(lambda: former not in driver.ranges)
    assert len(driver.ranges) == 2
    client.close()
    node.stop()
    until(lambda: not driver.ranges)
    REGISTRATIONS.leave()
    node.start()


@pytest.mark.thorough
def test_what_the_driver_refuses_is_one_line_and_the_memory_works(node, driver, caplog):
    driver.refuse = True
    REGISTRATIONS.use(driver)
    with caplog.at_level(logging.WARNING, logger="hexkv"):
        client = node.client()
        put(client, specs(2))
        with client.hold(specs(2), "read", soon()) as hold:
            assert hold.wait(soon())
            assert [bytes(lease.payload) for lease in hold.leases] == [*map(content, specs(2))]
    [record] = caplog.records
    assert record.getMessage() == (
        "mapped memory is not pinned, and a GPU's copies of it are slow:"
        " cudaHostRegister gave error 2"
    )
    client.close()


@pytest.mark.thorough
def test_a_pool_that_peers_may_map_is_registered_while_anything_shows_it(driver):
    REGISTRATIONS.use(driver)
    region = SharedMemory().allocate(MIB)
    late = region.buffer[:PAGE]
    region.close()
    assert [*driver.ranges.values()] == [MIB]
    late[:5] = b"later"
    del late
    assert driver.last == b"later"


@pytest.mark.thorough
def test_a_forked_child_unregisters_nothing_and_registers_nothing(driver, monkeypatch):
    REGISTRATIONS.use(driver)
    region = SharedMemory().allocate(MIB)
    child = os.getpid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: child)
        region.close()
    assert len(driver.ranges) == 1
    driver.ranges.clear()  # the parent's, which this test has no process for
    REGISTRATIONS.leave()  # as after a fork
    SharedMemory().allocate(MIB).close()
    assert driver.ranges == {}
