"""How Sphinx makes the documentation site of the repository's own pages: ``make docs``."""

import re
import sys
from importlib.metadata import version as installed
from pathlib import Path

from docutils.nodes import document
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring

sys.path.insert(0, str(Path(__file__).parent))
from configuration import page as configuration

project = "hexkv"
version = release = installed("hexkv")
copyright = "the authors of hexkv"  # noqa: A001 - what Sphinx calls it

# The source folder is the repository's root, so that each link means on the site what it means in a
# checkout. Folders that have no pages are excluded, so that no environment is walked.
root_doc = "docs/index"
include_patterns = [
    *("*.md", "*/README.md"),
    *("docs/*.md", "docs/*/*.md"),
    "plugins/*/README.md",
    *("adapters/*/README.md", "adapters/hf/hexkv/adapters/hf/models/README.md"),
    "benchmarks/gpu/README.md",
    "examples/blending-vllm/README.md",
]
exclude_patterns = [
    *(".*", "**/.*", "build", "dist", "tests", "**/tests"),
    *("core", "plugins/hexkv", "ports"),
]

extensions = [
    *("myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"),
    *("sphinx_copybutton", "sphinx_design"),
]
copybutton_prompt_text = "$ "
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

html_theme = "furo"
html_title = f"hexkv {version}"
html_static_path = ["static"]
html_css_files = ["narrow.css"]
html_copy_source = False
html_use_index = False  # search finds names; columns of long ones are wider than a screen

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
autodoc_default_options = {"exclude-members": "__init__"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def setup(app: Sphinx) -> None:
    """Do what no setting of Sphinx does."""
    # A colon in the text below an attribute is a colon, and what stands before it no type.
    GoogleDocstring._parse_attribute_docstring = lambda self: self._consume_to_end()
    app.connect("doctree-read", unlink_folders)
    app.connect("doctree-read", leave_decisions_out)
    app.connect("source-read", list_ports)


def unlink_folders(app: Sphinx, doctree: document) -> None:
    """Show links to folders as plain text: they lead somewhere in a checkout only."""
    here = Path(app.env.doc2path(app.env.docname)).parent
    for node in list(doctree.findall(pending_xref)):
        if node["reftype"] == "myst" and (here / node["reftarget"]).is_dir():
            node.replace_self(node.children)


def leave_decisions_out(app: Sphinx, doctree: document) -> None:
    """Keep decisions and notes, which their index and other pages link, out of the side bar."""
    del doctree
    if re.match(r"docs/(adr|notes)/\d", app.env.docname):
        app.env.metadata[app.env.docname]["orphan"] = True


def list_ports(app: Sphinx, page: str, source: list[str]) -> None:
    """Give each module of the ports a section of its page, and each key of a configuration."""
    if page == "docs/reference/configuration":
        app.env.note_dependency("docs/operations.md")
        source[0] += "\n" + configuration()
    if page == "docs/reference/ports":
        ports = Path(app.srcdir, "ports/hexkv/ports")
        names = (path.relative_to(ports).with_suffix("").parts for path in ports.rglob("[!_]*.py"))
        source[0] += "".join(SECTION.format(".".join(name)) for name in sorted(names, key=in_order))


def in_order(name: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Return what sorts modules before those of folders."""
    return len(name), name


SECTION = """
## {0}

```{{eval-rst}}
.. automodule:: hexkv.ports.{0}
   :members:
```
"""
