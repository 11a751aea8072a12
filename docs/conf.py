"""How the documentation is built: `sphinx-build -W -b html docs docs/_build/html`."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import metadata
from pathlib import Path

import tosica

info = metadata("tosica")

project = info["Name"]
author = "tosica developers"
copyright = f"2026, {author}"
version = release = info["Version"]

on_read_the_docs = os.environ.get("READTHEDOCS") == "True"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_autodoc_typehints",
    "sphinx_copybutton",
    "sphinxcontrib.bibtex",
    "scanpydoc.definition_list_typed_field",
    "scanpydoc.elegant_typehints",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
# What docstrings put between single backticks is code.
default_role = "literal"
nitpicky = False

# Sphinx sees only what lies in its own folder.
here = Path(__file__).parent
shutil.copytree(here.parent / "tutorials", here / "tutorials", dirs_exist_ok=True)

# -- links to other projects ------------------------------------------------------------------

# Their inventories are downloaded, so that only the published pages have these links: a build
# elsewhere needs no network.
if on_read_the_docs:
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "anndata": ("https://anndata.readthedocs.io/en/stable/", None),
        "lightning": ("https://lightning.ai/docs/pytorch/stable/", None),
        "matplotlib": ("https://matplotlib.org/stable/", None),
        "numpy": ("https://numpy.org/doc/stable/", None),
        "pandas": ("https://pandas.pydata.org/docs/", None),
        "python": ("https://docs.python.org/3/", None),
        "scanpy": ("https://scanpy.readthedocs.io/en/stable/", None),
        "scipy": ("https://docs.scipy.org/doc/scipy/", None),
        "scvi": ("https://docs.scvi-tools.org/en/stable/", None),
        "seaborn": ("https://seaborn.pydata.org/", None),
        "torch": ("https://pytorch.org/docs/stable/", None),
    }

# -- docstrings -------------------------------------------------------------------------------

autosummary_generate = True
# The model's page leaves out what scvi-tools gives the class, but not what its own parts do.
autosummary_context = {
    "of_scvi_tools": sorted(
        set(dir(tosica.TOSICA)).difference(
            *(vars(part) for part in tosica.TOSICA.__mro__ if part.__module__.startswith("tosica"))
        )
    )
}
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_param = True
napoleon_use_rtype = True
typehints_defaults = "braces"
typehints_document_rtype_none = False
always_use_bars_union = True
bibtex_bibfiles = ["references.bib"]
bibtex_reference_style = "author_year"

# -- pages that run code ----------------------------------------------------------------------

nb_execution_mode = "auto"
# Tutorials are shown as they ran. `scripts/check.sh tutorials` runs them, every night.
nb_execution_excludepatterns = ["tutorials/*"]
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

suppress_warnings = [
    # Imports for type checkers only: some of them are private to other packages or circular.
    "sphinx_autodoc_typehints.guarded_import",
    # Figures and tables that scanpy prints have no plain text form worth a warning.
    "mystnb.unknown_mime_type",
]

# -- the look ---------------------------------------------------------------------------------

html_theme = "scanpydoc"
html_title = "tosica"
html_static_path = ["_static"]
html_css_files = ["tosica.css"]
html_show_sourcelink = False
html_theme_options = {
    "accent_color": "#3d6b8f",
    # The search field is in the sidebar; without it the bar over the page is empty and goes away.
    "navbar_persistent": [],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
