"""How Sphinx builds these pages: offline, and with every broken reference an error (``-W -n``)."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

project = "Maniple"
author = "The Maniple authors"
copyright = author
with (ROOT / "pyproject.toml").open("rb") as file:
    release = version = tomllib.load(file)["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

# Pages are plain Markdown. A heading can be linked to as page.md#heading, three levels deep.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

nitpicky = True
# Names of other projects; their inventories are on the network, and this build is not.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|numpy|np|collections|pathlib|typing)(\..*)?"),
    (r"py:.*", r"(Path|Callable|Iterable|Iterator|Mapping|Sequence|Tensor)"),
    (r"py:(class|exc)", r"(Exception|ValueError|RuntimeError|optional)"),
]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"Maniple {version}"
html_copy_source = False
html_show_sourcelink = False
