"""A real S3 for tests: Ceph's gateway over one monitor and one OSD, processes of our own.

Debian's packages ``ceph-mon``, ``ceph-osd`` and ``radosgw`` have it all. The OSD keeps
everything in memory, and nothing listens beyond loopback.

https://docs.ceph.com/en/latest/radosgw/s3/
"""

import http.client
import shutil
import signal
import subprocess
import uuid
from contextlib import closing
from threading import Event
from urllib.parse import parse_qsl, quote

from hexkv.adapters.s3._signing import Credentials, Signer, query_of
from hexkv.contracts.store import BehindProxy
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline
from processes import free_port, freeze, listening_ports
from servers.s3_double import ACCESS_KEY, BUCKET, REGION, SECRET_KEY
from servers.s3_servers import Objects

PATIENCE = 60.0
"""Seconds after which a process that does not start counts as broken."""

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")

CONFIGURATION = """
[global]
fsid = {cluster}
mon host = v2:127.0.0.1:{monitor}
mon initial members = a
public addr = 127.0.0.1
ms bind ipv6 = false
# Without authentication only connections that are not encrypted are possible.
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
ms client mode = crc
ms service mode = crc
ms cluster mode = crc
ms mon cluster mode = crc
ms mon service mode = crc
# One copy of everything, on the one OSD that there is.
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
osd objectstore = memstore
memstore device bytes = 4294967296
memstore page set = false
mon data = {folder}/mon
osd data = {folder}/osd
run dir = {folder}
admin socket =
log file = {folder}/$name.log
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{gateway}
rgw enable usage log = false
rgw enable ops log = false
# What was deleted makes room soon.
rgw gc obj min wait = 1
rgw gc processor period = 2
rgw gc processor max time = 2
"""


class Ceph:
    """The smallest cluster; its gateway may be killed, frozen and started again."""

    def __init__(self, folder):
        lacking = [program for program in PROGRAMS if shutil.which(program) is None]
        assert not lacking, f"{lacking} missing: apt-get install ceph-mon ceph-osd radosgw"
        self.folder = folder
        self.port = free_port()
        self._monitor = free_port()
        self._keepers = []
        self._gateway = None

    @property
    def settings(self):
        """What a store needs to know."""
        endpoint = f"http://127.0.0.1:{self.port}"
        return {"endpoint": endpoint, "access_key": ACCESS_KEY, "secret_key": SECRET_KEY}

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.kill()
        for process in reversed(self._keepers):
            process.kill()
            process.wait()

    def start(self):
        self._gateway = self._spawn("radosgw", "-f", "-n", "client.rgw")
        self._until(self._gateway, self._listens)

    def kill(self):
        """As a machine goes down: no farewell. What was stored stays."""
        if self._gateway is not None:
            self._gateway.kill()
            self._gateway.wait()
            self._gateway = None

    def freeze(self):
        freeze(self._gateway)

    def thaw(self):
        self._gateway.send_signal(signal.SIGCONT)

    def objects(self, prefix):
        """The back door to what is stored below *prefix*."""
        return SignedObjects(self._connect, prefix, self._signed)

    def _build(self):
        cluster = str(uuid.uuid4())
        (self.folder / "ceph.conf").write_text(
            CONFIGURATION.format(
                cluster=cluster, folder=self.folder, monitor=self._monitor, gateway=self.port
            )
        )
        for part in ("mon", "osd"):
            (self.folder / part).mkdir()
        monmap, place = f"{self.folder}/monmap", f"[v2:127.0.0.1:{self._monitor}]"
        self._run("monmaptool", "--create", "--fsid", cluster, "--addv", "a", place, monmap)
        self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap)
        self._keepers.append(self._spawn("ceph-mon", "-f", "-i", "a"))
        disk = str(uuid.uuid4())
        self._run("ceph", "osd", "new", disk)
        self._run("ceph", "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=here")
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
        self._keepers.append(self._spawn("ceph-osd", "-f", "-i", "0"))
        whose = ("--uid", "tests", "--display-name", "tests")
        keys = ("--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY)
        self._run("radosgw-admin", "-n", "client.rgw", "user", "create", *whose, *keys)
        self.start()
        with closing(self._connect()) as line:
            line.request("PUT", f"/{BUCKET}", headers=self._signed("PUT", f"/{BUCKET}", ""))
            assert line.getresponse().status == 200

    def _run(self, program, *arguments):
        done = subprocess.run(
            [program, "-c", f"{self.folder}/ceph.conf", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"{program} {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def _spawn(self, program, *arguments):
        return subprocess.Popen(
            [program, "-c", f"{self.folder}/ceph.conf", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _until(self, process, reached):
        patience, pause = Deadline.after(SystemClock(), PATIENCE), Event()
        while not reached():
            assert process.poll() is None, f"{process.args[0]} ended: see {self.folder}"
            assert not patience.expired, f"{process.args[0]} did not start: see {self.folder}"
            pause.wait(0.05)

    def _listens(self):
        if self.port not in listening_ports(self._gateway.pid):
            return False
        with closing(self._connect()) as line:
            line.request("GET", "/")
            return line.getresponse().status == 200

    def _connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def _signed(self, method, path, query):
        signer = Signer(REGION, f"127.0.0.1:{self.port}")
        asked = query_of(dict(parse_qsl(query, keep_blank_values=True)))
        now = SystemClock().wall()
        return signer.headers(Credentials(ACCESS_KEY, SECRET_KEY), now, method, path, asked)


class SignedObjects(Objects):
    """The back door to a server that believes nobody."""

    def __init__(self, connect, prefix, signed):
        super().__init__(connect, prefix, {}, BUCKET)
        self._signed = signed

    def _ask(self, method, name, body=None, query=""):
        path = f"/{BUCKET}/{quote(name)}"
        self.headers = self._signed(method, path, query.removeprefix("?"))
        return super()._ask(method, name, body, query)


class BreakableCeph(BehindProxy):
    """Its gateway, behind a proxy, to be broken by the contract of the ways of failing."""

    can = BehindProxy.can | {"kill"}

    def __init__(self, ceph, proxy):
        super().__init__(proxy)
        self.ceph = ceph

    @property
    def settings(self):
        return self.ceph.settings | {"endpoint": f"http://{self.proxy.address}"}

    def kill(self):
        self.ceph.kill()

    def start(self):
        self.ceph.start()

    def stall(self):
        self.ceph.freeze()

    def resume(self):
        self.ceph.thaw()
