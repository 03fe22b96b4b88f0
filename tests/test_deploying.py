"""The units of systemd, and the chart, of ``examples/deploy``."""

import configparser
import re
import shutil
import subprocess

from hexkv.plugins.__main__ import main
from installing import ROOT

DEPLOY = ROOT / "examples" / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
HARDENED = {
    "CapabilityBoundingSet": "",
    "NoNewPrivileges": "true",
    "ProtectSystem": "strict",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
}


def test_the_units_of_a_node_are_notified_and_hardened(capsys):
    assert len(UNITS) == 2
    for path in UNITS:
        unit = configparser.ConfigParser(interpolation=None, delimiters=("=",), strict=False)
        unit.optionxform = str
        unit.read_string(path.read_text())
        service = dict(unit["Service"])
        assert HARDENED.items() <= service.items()
        assert (service["Type"], service["ExecReload"]) == ("notify", "/bin/kill -HUP $MAINPID")
        flags = set(re.findall(r"--[a-z-]+", service["ExecStart"]))
        assert main(["node", "--help"]) == 0
        assert flags <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        if shutil.which("systemd-analyze"):
            rate = ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(path)]
            done = subprocess.run(rate, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout.splitlines()[-1]
