"""How the documentation is built: ``make docs``. Neither that nor reading it needs a network."""

import re
import sys
from pathlib import Path

import codecl

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_extensions"))

project = "codecl"
author = "The codecl authors"
project_copyright = author
version = release = codecl.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
extensions += ["sphinx.ext.viewcode", "command_line", "mathml"]
exclude_patterns = ["_build"]
nitpicky = True

html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"codecl {release}"
html_static_path = ["_static"]
html_css_files = ["codecl.css"]
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_update_mathjax = False

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False  # a method's page says what is its own; the rest stands with its base class
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autosummary_generate = False  # the pages are written by hand, by group
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

nitpick_ignore_regex = [
    # Types of others: nothing is fetched to link to them.
    ("py:class", r"(torch|collections|contextlib|typing|pathlib|os)\..*"),
    # Not public, in what is.
    ("py:class", r"codecl\.(attach\.(heads\.TaskHeads|projection\.(LowRank|Dense))|training\.schedule\.Rule)"),
    (
        "py:class",
        r"codecl\.(attach\.probe\.Probe|method\.(promise\.Promise|inference\.Prediction)|runs\.export\.Loaded|"
        r"training\.augment\.Augmentation)",
    ),
    # Half of an alias that Sphinx takes apart.
    ("py:class", r"dict\[str"),
]

# Documents outside of docs/ that are pages here as well, each or a section of it.
PAGES = {
    "CONTRIBUTING.md#add-a-method": "howto/add-a-method.md",
    "CONTRIBUTING.md#add-a-layer-type": "howto/add-a-layer-type.md",
    "CONTRIBUTING.md": "contributing.md",
    "REPRODUCTION.md": "reproduction.md",
    "CHANGELOG.md": "changelog.md",
}


def lead_to_pages(app, name, source):
    """A link that leaves ``docs`` for a document or a source file that is a page here leads to the page."""
    up = "../" * (name.count("/") + 1)

    def page(link):
        target = PAGES.get(link[1])
        return f"]({up[3:]}{target})" if target else link[0]

    source[0] = re.sub(rf"\]\({re.escape(up)}([^)]*)\)", page, source[0])
    module = rf'<a href="{up[3:]}_modules/codecl/\2.html"><code>\1</code></a>'
    source[0] = re.sub(rf"\[`?([^]`]*)`?\]\({re.escape(up)}src/codecl/([\w/]+)\.py\)", module, source[0])


def setup(app):
    app.connect("source-read", lead_to_pages)
