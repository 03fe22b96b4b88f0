"""What is shipped: extras, wheels and what lies in them, and packages of another contract."""

import json
import re
import runpy
import shutil
import sys
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement

from hexkv.ports import CONTRACT
from operating.installing import (
    FOLDERS,
    PIP,
    ROOT,
    attempt,
    build,
    environment,
    made,
    project,
    run,
    wheels_in,
)

EXTRAS = project(ROOT)["optional-dependencies"]

ABSENT = {
    "hf": {"hexkv.blending"},  # for blending: hexkv-hf[blending]
    "lmcache": {"hexkv.contracts", "pytest"},  # its checks of servers extend the kit
    "lossless": {"hexkv.kernels"},  # for rANS: hexkv-lossless[rans]
    "mooncake": {"mooncake"},
    "node": {"hexkv.contracts", "pytest"},  # for the same reason
    "sglang": {"sglang"},
    "vllm": {"vllm"},
}
"""What an extra does not bring: its host, which is there in a build for the machine, or options."""

OPTIONS = {"triton", "numba", "llvmlite", "numpy"}
"""What parts of the kernels need, which are left out without it: Triton comes with torch's builds
for GPUs, numba with hexkv-lossless[rans] and hexkv-cachegen; numpy is for windows on its arrays."""

IMPORTS = """\
import importlib, importlib.util, json, pkgutil
tops = ["hexkv", *(["hexkv.adapters"] if importlib.util.find_spec("hexkv.adapters") else [])]
paths = [(importlib.import_module(top).__path__, f"{top}.") for top in tops]
absent = set()
for module in (found for path, top in paths for found in pkgutil.walk_packages(path, top)):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        absent.add(error.name)
print(json.dumps(sorted(absent)))
"""


def beside():
    """The folders of distributions beside ``hexkv`` that have plugins."""
    tops = ("adapters", "plugins")
    return [f for f in FOLDERS if f.parent.name in tops and "entry-points" in project(f)]


def test_every_distribution_has_an_extra_of_its_name_and_all_is_all_of_them():
    names = {folder.name for folder in beside()}
    assert names == set(EXTRAS) - {"all", "blake3"}
    for name in names:
        assert f"hexkv-{name}" in {Requirement(text).name for text in EXTRAS[name]}
    [everything] = map(Requirement, EXTRAS["all"])
    assert everything.name == "hexkv"
    assert everything.extras == set(EXTRAS) - {"all"}


def test_every_distribution_is_found_by_the_same_words():
    [words] = {
        (tuple(project(folder)["classifiers"]), tuple(project(folder)["keywords"]))
        for folder in FOLDERS
    }
    assert "Typing :: Typed" in words[0]
    assert "KV cache" in words[1]


@pytest.fixture(scope="module")
def wheels(pytestconfig, tmp_path_factory):
    """A wheel of every distribution, by its name."""
    return made(pytestconfig, tmp_path_factory.mktemp("wheels"))


def listed(python):
    """What `hexkv adapters` says there."""
    done = attempt(python.parent / "hexkv", "adapters", "--json", cwd=python.parent)
    rows = json.loads(done.stdout)
    assert done.returncode == 0, [row for row in rows if row["state"] == "broken"]
    return rows


@pytest.mark.thorough
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_is_installed_imports_and_is_listed(extra, wheels, tmp_path):
    python = environment(tmp_path, wheels, f"hexkv[{extra}]")
    rows = listed(python)
    asked = {Requirement(text).name for text in EXTRAS[extra]}
    if extra == "all":
        asked = {f"hexkv-{folder.name}" for folder in beside()}
    elif extra == "blake3":
        run(python, "-I", "-c", "import blake3", cwd=tmp_path)
        asked = {"hexkv"}
    shown = {row["distribution"].partition(" ")[0] for row in rows}
    assert asked <= shown
    if extra != "blake3":
        absent = set(json.loads(run(python, "-I", "-c", IMPORTS, cwd=tmp_path)))
        kept = ABSENT.get(extra, set().union(*ABSENT.values()) if extra == "all" else set())
        assert absent <= kept | OPTIONS
    for row in rows:
        if row["state"] != "ready":  # then it says what to install
            assert "needs" in row["state"], row
            assert "(" in row["state"], row


@pytest.mark.thorough
def test_a_wheel_lists_what_it_needs_and_brings_as_cyclonedx(wheels):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator = JsonStrictValidator(SchemaVersion.V1_6)
    for folder in FOLDERS:
        name = project(folder)["name"]
        with zipfile.ZipFile(wheels[name]) as wheel:
            [place] = [n for n in wheel.namelist() if ".dist-info/sboms/" in n]
            text = wheel.read(place).decode()
            brought = {n for n in wheel.namelist() if n.endswith(".safetensors")}
        assert validator.validate_str(text) is None
        found = json.loads(text)
        about = found["metadata"]["component"]
        assert (about["name"], about["version"]) == (name, project(folder)["version"])
        kinds = {"library": set(), "machine-learning-model": set()}
        for component in found["components"]:
            kinds[component["type"]].add(component["name"])
        extras = project(folder).get("optional-dependencies", {}).values()
        needs = [*project(folder).get("dependencies", ()), *(n for some in extras for n in some)]
        assert kinds["library"] == {Requirement(need).name.lower() for need in needs} - {name}
        assert kinds["machine-learning-model"] == brought
    control = json.loads(text) | {"components": [{"type": "imagined"}]}
    assert validator.validate_str(json.dumps(control)) is not None


@pytest.mark.thorough
def test_wheels_built_twice_are_the_same_bytes(wheels, tmp_path):
    again = build(tmp_path)
    assert [n for n in wheels if wheels[n].read_bytes() != again[n].read_bytes()] == []


@pytest.mark.thorough
def test_an_sdist_has_all_that_its_wheel_is_built_of(wheels, tmp_path):
    run("make", "--silent", "sdists", f"WHEELS={tmp_path}", cwd=ROOT)
    sources = sorted(tmp_path.glob("*.tar.gz"))
    build_it = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path]
    run(*PIP, *build_it, *sources, cwd=tmp_path)
    again = wheels_in(tmp_path)
    assert again.keys() == {project(folder)["name"] for folder in FOLDERS}
    for name, wheel in again.items():
        assert contents(wheel) == contents(wheels[name]), name


def contents(wheel):
    """Each file of a wheel but the list of them and that of requirements."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.endswith(("/RECORD", ".cdx.json"))
        }


def packaged(folder, target):
    """The wheel of somebody else's package."""
    run(
        *PIP,
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        target,
        folder,
        cwd=target,
    )
    return wheels_in(target)


OPENED = """\
from hexkv.api import DType, KVLayout, open_cache
layout = KVLayout.attention(DType.FLOAT16, layers=1, heads=1, key_width=8)
open_cache("hexkv.yaml", model="toy", layout=layout)
"""


@pytest.mark.thorough
def test_a_package_of_a_newer_contract_is_refused_by_name_and_stops_nobody(wheels, tmp_path):
    newer = shutil.copytree(ROOT / "examples" / "acme-tape", tmp_path / "newer")
    spec = newer / "acme_tape" / "__init__.py"
    spec.write_text(spec.read_text().replace(f"contract={CONTRACT}", f"contract={CONTRACT + 1}"))
    (tmp_path / "wheels").mkdir()
    all_wheels = wheels | packaged(newer, tmp_path / "wheels")
    python = environment(tmp_path / "env", all_wheels, "acme-tape", "hexkv[local]")
    states = {(row["kind"], row["name"]): row["state"] for row in listed(python)}
    assert states["store", "tape"].startswith(f"is written for contract {CONTRACT + 1}, and")
    assert states["store", "disk"] == "ready"
    (tmp_path / "hexkv.yaml").write_text("tiers:\n  - {store: tape}\n")
    done = attempt(python, "-c", OPENED, cwd=tmp_path)
    assert done.returncode == 1
    assert "adapter 'tape' is not available: is written for contract" in done.stderr


@pytest.mark.thorough
def test_changes_become_a_release_and_a_misnamed_one_is_an_error(tmp_path):
    for name in ("changes", "pyproject.toml", "CHANGELOG.md"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    texts = [p.read_text().strip() for p in (tmp_path / "changes").glob("*.*.md")]
    before = (tmp_path / "CHANGELOG.md").read_text()
    towncrier = [sys.executable, "-m", "towncrier", "build", "--keep", "--version", "9.9.0"]
    (tmp_path / "changes" / "thing.nonsense.md").write_text("?")
    assert attempt(*towncrier, cwd=tmp_path).returncode != 0
    assert (tmp_path / "CHANGELOG.md").read_text() == before
    (tmp_path / "changes" / "thing.nonsense.md").rename(tmp_path / "changes" / "thing.fixed.md")
    run(*towncrier, cwd=tmp_path)
    after = (tmp_path / "CHANGELOG.md").read_text()
    assert after.index("## 9.9.0 (") > after.index("<!-- releases -->")
    lines = " ".join(after.split())  # each of a fragment's is indented
    assert all(f"- {' '.join(text.split())}" in lines for text in [*texts, "?"])


def test_a_version_is_that_of_every_distribution_and_of_what_they_require_of_each_other():
    module = runpy.run_path(str(ROOT / "release" / "version.py"))
    assert {path.parent for path in module["files"](ROOT)} == set(FOLDERS)
    for path in module["files"](ROOT):
        before = path.read_text()
        after = tomllib.loads(module["with_version"](before, "7.8.9"))["project"]
        assert after["version"] == "7.8.9"
        for text in _required(after):
            need = Requirement(text)
            if need.name.startswith("hexkv") and need.specifier:
                assert str(need.specifier) in ("<7.9,>=7.8", ">=7.8,<7.9"), text
        assert module["with_version"](before, module["version_of"](before)) == before
    texts = module["rewritten"](ROOT, "7.8.9")
    assert [path for path, text in texts.items() if "7.8" not in text] == []
    shown = re.search(r"^## (\S+) ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert shown == project(ROOT)["version"], "make version and make changelog go together"


@pytest.mark.thorough
def test_an_index_shows_the_pages_of_all_distributions_with_absolute_links(monkeypatch):
    from readme_renderer import markdown

    monkeypatch.syspath_prepend(ROOT / "release")
    module = runpy.run_path(str(ROOT / "release" / "address.py"))
    public, ref = "https://example.org/acme/hexkv", "v0.2.0"
    for folder in FOLDERS:
        text = (folder / "pyproject.toml").read_text().partition("\n[project.urls]")[0]
        about = tomllib.loads(text + module["urls"](public, ref))["project"]
        assert all(url.startswith(public) for url in about["urls"].values())
        page = folder / about["readme"]
        shown = markdown.render(module["absolute"](page.read_text(), folder, ROOT, public, ref))
        relative = re.findall(r'(?:href|src)="(?!https?://|#)([^"]*)"', shown)
        assert relative == [], page


def _required(project):
    yield from project.get("dependencies", [])
    for texts in project.get("optional-dependencies", {}).values():
        yield from texts


def test_what_is_published_beside_files_has_their_digests_and_one_version(tmp_path):
    module = runpy.run_path(str(ROOT / "release" / "statements.py"))
    for name in ("hexkv-0.2.0.tar.gz", "hexkv_plan-0.2.0-py3-none-any.whl"):
        (tmp_path / name).write_bytes(name.encode())
    for tag in ("", "v0.2.0"):
        assert len(module["write"](tmp_path, tag)) == 2
    check = attempt("sha256sum", "--check", "SHA256SUMS", cwd=tmp_path)
    assert check.returncode == 0, check.stdout
    said = json.loads((tmp_path / "hexkv-0.2.0.tar.gz.statement.json").read_text())
    [subject] = said["subject"]
    assert subject["digest"]["sha256"] in (tmp_path / "SHA256SUMS").read_text()
    with pytest.raises(ValueError, match=r"the tag is v0\.3\.0"):
        module["write"](tmp_path, "v0.3.0")
    (tmp_path / "hexkv_net-0.1.0-py3-none-any.whl").touch()
    with pytest.raises(ValueError, match=r"of versions 0\.1\.0, 0\.2\.0"):
        module["write"](tmp_path, "")
    (tmp_path / "changes").mkdir()
    (tmp_path / "CHANGELOG.md").write_text("## 0.3.0 (x)\n\nnew\n\n## 0.2.0 (y)\n\nold\n")
    assert module["notes"](tmp_path, "0.3.0", "v0.3.0") == "## 0.3.0 (x)\n\nnew\n\n"
    with pytest.raises(ValueError, match=r"no section of 0\.4\.0"):
        module["notes"](tmp_path, "0.4.0", "v0.4.0")
    (tmp_path / "changes" / "late.fixed.md").touch()
    with pytest.raises(ValueError, match=r"changes wait: late\.fixed\.md"):
        module["notes"](tmp_path, "0.3.0", "v0.3.0")
