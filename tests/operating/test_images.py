"""Dockerfiles, held to the tree and to what their commands do; nothing here builds an image."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hexkv.plugins.__main__ import main
from operating.administration import short_folder
from operating.installing import ROOT, project
from processes import held_port, until

IMAGES = [ROOT / "examples/deploy/images/Dockerfile", ROOT / "adapters/vllm/deploy/Dockerfile"]
EXTRAS = project(ROOT)["optional-dependencies"]


def stages(path):
    """Instructions by the name of their stage, each with its words."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE))
    found = {}
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            name = rest.rpartition(" AS ")[2]
            found[name] = []
        found[name].append((word, rest))
    return found


def test_every_instruction_of_the_images_fits_the_tree(capsys):
    shown = (ROOT / ".dockerignore").read_text().split()
    for path in IMAGES:
        found = stages(path)
        for name, instructions in found.items():
            said = dict(instructions)
            base = said["FROM"].partition(" AS ")[0]
            assert base in found or re.search(r":[^:]*\d+\.\d+", base), "a base has a version"
            for word, rest in instructions:
                if word == "COPY":
                    source = next(w for w in rest.split() if not w.startswith("--"))
                    assert (ROOT / source).is_file()
                    assert any(f"!{parent}" in shown for parent in map(str, Path(source).parents))
                for given in re.findall(r'"(hexkv\[[^"]*)"', rest) if word == "RUN" else ():
                    assert "source=dist" in rest
                    assert "!dist" in shown
                    need = Requirement(given.replace("$VERSION", said["ARG"].partition("=")[2]))
                    assert need.extras <= set(EXTRAS)
                    assert str(need.specifier) == f"=={project(ROOT)['version']}"
            if "ENTRYPOINT" not in said:
                continue
            assert said["USER"] == "1000:1000"
            entry, options = json.loads(said["ENTRYPOINT"]), json.loads(said["CMD"])
            assert entry[0] == "hexkv"
            assert main([*entry[1:], "--help"]) == 0
            flags = {option for option in options if option.startswith("--")}
            assert flags <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out)), name
            assert json.loads(said["HEALTHCHECK"].partition("CMD ")[2])


def test_an_image_has_what_the_files_that_use_it_name():
    node = re.search(r"AS node\n.*?hexkv\[([^\]]*)", IMAGES[0].read_text(), re.DOTALL)[1]
    assert {"tcp", "peer", "directory"} <= set(node.split(",")), "nodes read from each other"
    [need] = re.findall(r'"(hexkv\[[^"=]*)', IMAGES[1].read_text())
    extras = Requirement(need).extras
    used = {"vllm", "node", "redis", "local"}
    assert used <= extras, "examples/prefill-decode runs its node, deploy/compose shares a Redis"


def linted(text):
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent)
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, "-"], input=text, capture_output=True, text=True, check=False)
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.parts[-3])
def test_a_linter_finds_nothing_wrong_with_a_dockerfile(path):
    text = path.read_text()
    assert linted(text) == ""
    assert linted(text.replace("RUN --mount", "RUN cd /tmp && --mount", 1)) != "", "the control"


@pytest.mark.thorough
@pytest.mark.parametrize("image", ["node", "directory", "serve"])
def test_what_an_image_runs_serves_and_its_probe_tells_when_it_does(image, tmp_path):
    said = dict(stages(IMAGES[0])[image])
    secret = tmp_path / "secret"
    secret.write_text("a secret of the tests, long enough")
    secret.chmod(0o600)
    config = tmp_path / "node.yaml"
    text = (ROOT / "examples/deploy/node.yaml").read_text()
    config.write_text(re.sub(r"\d+(GiB|TiB)", "16MiB", text).replace("/var/lib", str(tmp_path)))
    with short_folder() as folder:
        places = {
            "/run/hexkv": str(folder),
            "/run/secrets/hexkv": str(secret),
            "/etc/hexkv/node.yaml": str(config),
            "0.0.0.0": "127.0.0.1",
            "4GiB": "512MiB",
            "9470": str(held_port()),
            "7171": "0",
            "7070": "0",
            '"ready"': json.dumps([sys.executable, str(IMAGES[0].parent / "ready.py")])[1:-1],
        }
        for place, here in places.items():
            said = {word: rest.replace(place, here) for word, rest in said.items()}
        command = [*json.loads(said["ENTRYPOINT"]), *json.loads(said["CMD"])]
        probe = json.loads(said["HEALTHCHECK"].partition("CMD ")[2])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path}

        def healthy():
            done = subprocess.run(probe, env=environment, capture_output=True, check=False)
            return done.returncode == 0

        assert not healthy()
        log = (tmp_path / "log").open("wb")
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            until(lambda: process.poll() is not None or healthy())
            assert process.poll() is None, f"{shlex.join(command)}: {Path(log.name).read_text()}"
            process.terminate()
            assert process.wait(60) == 0
            assert not healthy()
        finally:
            process.kill()
            process.wait(60)
            log.close()
