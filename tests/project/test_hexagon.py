"""The shape of the project, held by tests."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from hexkv.contracts.kit.cases import each

ROOT = Path(__file__).parents[2]
_MADE = {"build", "dist", "__pycache__"}
_OTHERS = {"examples", "tests"}
"""Folders that have packages of third parties."""


def sources(folder):
    """Every file that somebody wrote: without what tools make, git needs not be there."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") and path.name not in (".ci", ".gitignore"):
            continue
        if path.is_dir() and path.name not in _MADE and path.suffix != ".egg-info":
            yield from sources(path)
        elif path.is_file():
            yield path


def folders(path):
    """Those below the root that *path* is in: where the project itself lies is nobody's matter."""
    return path.relative_to(ROOT).parts[:-1]


SOURCES = list(sources(ROOT))
PROJECTS = [p for p in SOURCES if p.name == "pyproject.toml" and _OTHERS.isdisjoint(folders(p))]
LIBRARIES = {"net"}
"""Distributions among the adapters that adapters stand on; they offer nothing themselves."""

ADAPTERS = [path for path in PROJECTS if "adapters" in folders(path)]
PLUGINS = [path for path in PROJECTS if "plugins" in folders(path)]
PRODUCT = [p for p in SOURCES if p.suffix == ".py" and "hexkv" in folders(p)]


def name(path):
    return path.relative_to(ROOT).as_posix()


def project(path):
    return tomllib.loads(path.read_text())["project"]


def test_imports_point_inwards():
    """The contracts are in ``pyproject.toml``, under ``tool.importlinter``."""
    lint = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    done = subprocess.run([sys.executable, "-c", lint], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_the_namespaces_have_no_module_of_their_own():
    """One stray ``hexkv/__init__.py`` would hide every other distribution."""
    strays = [
        path
        for pattern in ("*/hexkv/", "*/*/hexkv/", "adapters/*/hexkv/adapters/")
        for path in ROOT.glob(f"{pattern}__init__.py")
    ]
    assert strays == []


def test_every_module_has_one_owner():
    seen = {}
    for top in (*ROOT.glob("*/hexkv"), *ROOT.glob("*/*/hexkv")):
        for path in top.rglob("*.py"):
            module = path.relative_to(top.parent).as_posix()
            assert seen.setdefault(module, top) == top, f"{module}: {seen[module]} and {top}"


def test_every_package_says_that_it_is_typed():
    packages = [
        *ROOT.glob("*/hexkv/*/"),
        *ROOT.glob("*/*/hexkv/*/"),
        *ROOT.glob("*/*/hexkv/adapters/*/"),
    ]
    packages = [package for package in packages if (package / "__init__.py").exists()]
    assert len(packages) >= 7
    for package in packages:
        assert (package / "py.typed").exists(), package


def test_there_is_one_version():
    assert len({project(path)["version"] for path in PROJECTS}) == 1


def test_a_distribution_is_named_after_its_folder():
    for path in (*ADAPTERS, *PLUGINS):
        folder = path.parent.name
        package = f"hexkv.adapters.{folder}" if path in ADAPTERS else f"hexkv.{folder}"
        assert project(path)["name"] == f"hexkv-{folder}"
        offered = {} if folder in LIBRARIES else {folder: f"{package}.plugin"}
        assert project(path).get("entry-points", {}).get("hexkv", {}) == offered


def test_a_distribution_requires_the_libraries_that_it_imports():
    for path in ADAPTERS:
        required = {need.partition(">")[0] for need in project(path)["dependencies"]}
        for library in LIBRARIES - {path.parent.name}:
            sources = [file.read_text() for file in (path.parent / "hexkv").rglob("*.py")]
            imported = any(f"hexkv.adapters.{library}" in text for text in sources)
            assert imported == (f"hexkv-{library}" in required), name(path)


def test_every_environment_that_makes_a_distribution_makes_what_it_requires():
    """``pip install --editable`` of a list takes none of ours from anywhere else."""
    makefile = (ROOT / "Makefile").read_text()
    lists = re.findall(r"^(\w+_DISTS) := (.*)$", makefile, flags=re.MULTILINE)
    assert len(lists) >= 2
    for _, folders in lists:
        made = [project(ROOT / folder / "pyproject.toml") for folder in folders.split()]
        names = {it["name"] for it in made}
        needed = {need.partition(">")[0] for it in made for need in it["dependencies"]}
        assert {need for need in needed if need.partition("-")[0] == "hexkv"} <= names


def test_every_distribution_has_a_readme_that_says_something():
    readmes = {path: path.parent / project(path)["readme"] for path in PROJECTS}
    assert [name(p) for p, readme in readmes.items() if len(readme.read_text().split()) <= 30] == []


_IMPORT_ALL = """
import importlib, json, pkgutil, sys, threading

before = set(sys.modules)
for package in json.loads(sys.argv[1]):
    top = importlib.import_module(package)
    for module in pkgutil.walk_packages(top.__path__, package + "."):
        if module.name != "hexkv.api.arrays":  # for those who have numpy
            importlib.import_module(module.name)
loaded = {module.partition(".")[0] for module in set(sys.modules) - before}
print(json.dumps({
    "loaded": sorted(loaded - sys.stdlib_module_names - {"hexkv"}),
    "threads": [thread.name for thread in threading.enumerate()],
}))
"""


def imported(*packages):
    """What importing every module of *packages* in a fresh process brings in."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, json.dumps(packages)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_ports_and_core_import_the_standard_library_only():
    assert imported("hexkv.ports", "hexkv.core") == {"loaded": [], "threads": ["MainThread"]}


def test_importing_hexkv_starts_no_thread_and_nothing_heavy():
    found = imported(
        "hexkv.ports", "hexkv.core", "hexkv.plugins", "hexkv.api", "hexkv.adapters.local"
    )
    assert found["threads"] == ["MainThread"]
    assert not {"torch", "numpy", "transformers"} & set(found["loaded"])


def test_help_imports_nothing_that_only_commands_need():
    code = (
        "import sys; from hexkv.plugins.__main__ import main; main(['--help']);"
        "print(sorted({m.partition('.')[0] for m in sys.modules}"
        " & {'hmac', 'markdown_it', 'numpy', 'pydantic', 'rich', 'torch', 'transformers',"
        " 'xxhash', 'yaml'}))"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "Commands to run:" in told
    assert told.splitlines()[-1] == "[]"


def test_a_file_is_about_one_thing():
    long = []
    for path in PRODUCT:
        lines = len(path.read_text().splitlines())
        port = "ports" in folders(path) and path.name != "__init__.py"  # which lists all names
        if lines > (150 if port else 400):
            long.append(f"{name(path)}: {lines} lines")
    assert long == []


FORBIDDEN = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
WORDS = re.compile("|".join([*sorted(FORBIDDEN | BUILTINS), r"torch\b"]))
"""What a file without any of them cannot import or call: only the others are parsed."""


def dangers(node):
    """What a node of a syntax tree imports or calls that can run what somebody sent."""
    if isinstance(node, ast.Import):
        yield from FORBIDDEN & {alias.name.partition(".")[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        yield from FORBIDDEN & {(node.module or "").partition(".")[0]}
    elif isinstance(node, ast.Call):
        called = node.func
        # ``model.eval()`` is torch's, ``re.compile()`` no code: only the builtins count.
        if isinstance(called, ast.Name):
            yield from BUILTINS & {called.id}
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            yield from {"torch.load"} & {f"{called.value.id}.{called.attr}"}


def seen(code):
    """Each danger in *code* and its line."""
    if not WORDS.search(code):
        return []
    return [(node.lineno, danger) for node in ast.walk(ast.parse(code)) for danger in dangers(node)]


@each("code", ["import pickle", "from shelve import x", "eval('1')", "torch.load(f)"])
def test_what_would_be_dangerous_is_seen(code):
    assert seen(code)


def test_nothing_is_unpickled_or_evaluated():
    found = [
        f"{name(path)}:{line}: {danger}"
        for path in PRODUCT
        for line, danger in seen(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_only_the_configuration_layer_reads_the_environment():
    readers = {
        name(path)
        for path in PRODUCT
        if "tests" not in folders(path) and re.search(r"\bos\.environ|getenv", path.read_text())
    }
    watch = "contracts/hexkv/contracts/_imports.py"  # sees others read it
    assert readers == {"plugins/hexkv/plugins/configuration/config.py", watch}


def test_certificates_are_read_at_one_place_which_reads_them_anew():
    asks = re.compile(r"load_cert_chain|load_verify_locations|create_default_context|SSLContext\(")
    readers = {
        name(path)
        for path in PRODUCT
        if "tests" not in folders(path) and asks.search(path.read_text())
    }
    assert readers == {"adapters/net/hexkv/adapters/net/tls.py"}


MACHINE = re.compile(r"(?<![\w.])/(?:home|root|Users|tmp|work|mnt|srv)/\w")


def test_no_file_names_a_path_of_somebodys_machine():
    """A path in a directory of tests' own making, or of an example, is no such path."""
    found = []
    for path in SOURCES:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{name(path)}: {match.group()}" for match in MACHINE.finditer(text)]
    assert found == []


def test_no_listener_accepts_beside_the_one_class_that_bounds_all():
    """Sockets are accepted in one module, and threads answer them in another."""
    accepting = {
        name(path)
        for path in PRODUCT
        if "adapters" in path.parts or "plugins" in path.parts
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("accept", "serve_forever", "start_server")
    }
    net = "adapters/net/hexkv/adapters/net"
    assert accepting == {
        f"{net}/server/accepting.py",
        f"{net}/server/listening.py",
        f"{net}/server/server.py",
        "adapters/node/hexkv/adapters/node/server/server.py",
    }
