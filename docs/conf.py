"""How the documentation is built: `sphinx-build -W -b html docs docs/_build/html`."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
from importlib.machinery import PathFinder
from importlib.metadata import metadata
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tosica

if TYPE_CHECKING:
    from sphinx.application import Sphinx

info = metadata("tosica")

project = info["Name"]
author = "tosica developers"
copyright = f"2026, {author}"
version = release = info["Version"]
repository = dict(url.split(", ") for url in info.get_all("Project-URL"))["Source"]

on_read_the_docs = os.environ.get("READTHEDOCS") == "True"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.linkcode",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_autodoc_typehints",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.bibtex",
    "scanpydoc.definition_list_typed_field",
    "scanpydoc.elegant_typehints",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
# What docstrings put between single backticks is code.
default_role = "literal"

# -- references that lead nowhere ---------------------------------------------------------------

nitpicky = True
nitpick_ignore_regex = [
    # Other projects: their inventories are downloaded for the published pages only, see below, and
    # a name that one of them moves must not stop a build.
    (
        r"py:.*",
        r"(anndata|lightning|matplotlib|mudata|numpy|pandas|scanpy|scipy|scvi|seaborn|torch)\..+",
    ),
    (r"py:.*", rf"({'|'.join(sorted(sys.stdlib_module_names))})(\..+)?"),
    (r"py:data", r"Ellipsis"),
]
nitpick_ignore = [
    # Types of attributes that are shown, but whose parts only the package itself reads.
    ("py:class", "tosica.linear._reference_statistics.ReferenceStatistics"),
    ("py:class", "tosica.model._levels.LabelLevel"),
    ("py:class", "tosica.model._modalities.Modality"),
    ("py:class", "tosica.module._module.TokenLayout"),
    ("py:class", "tosica.onto._hierarchy.LabelHierarchy"),
]
# Classes are documented where users import them.
qualname_overrides = {
    "mudata._core.mudata.MuData": "mudata.MuData",
    "pandas.core.arrays.categorical.Categorical": "pandas.Categorical",
    "pandas.core.frame.DataFrame": "pandas.DataFrame",
    "pandas.core.series.Series": "pandas.Series",
    "scipy.sparse._csr.csr_matrix": "scipy.sparse.csr_matrix",
    "tosica.model._annotation_result.AnnotationResult": "tosica.model.AnnotationResult",
    "tosica.model._query_loader.Minibatch": "tosica.model.Minibatch",
}

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


def linkcode_resolve(domain: str, about: dict[str, str]) -> str | None:
    """Tell where the source of a function or class is, for the link beside its signature."""
    try:
        value = attrgetter(about["fullname"])(sys.modules[about["module"]])
        value = inspect.unwrap(getattr(value, "fget", value))
        path = Path(inspect.getsourcefile(value)).relative_to(
            Path(tosica.__file__).parent
        )
        lines, first = inspect.getsourcelines(value)
    except (
        AttributeError,
        TypeError,
        ValueError,
    ):  # no function, or one of another package
        return None
    return (
        f"{repository}/blob/main/src/tosica/{path}#L{first}-L{first + len(lines) - 1}"
    )


# -- docstrings -------------------------------------------------------------------------------

autosummary_generate = True
# Pages of classes leave out what scvi-tools and Python give them, but not what their own parts do,
# nor the attributes that users of scvi-tools look for.
autosummary_context = {
    "of_others": sorted(
        set(dir(tosica.TOSICA))
        .difference(
            *(
                vars(part)
                for part in tosica.TOSICA.__mro__
                if part.__module__.startswith("tosica")
            )
        )
        .union(dir(tuple))
    ),
    "shared_with_scvi_tools": [
        "adata",
        "device",
        "history",
        "is_trained",
        "train_indices",
        "validation_indices",
    ],
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
html_logo = "_static/logo.svg"
html_favicon = "_static/favicon.svg"
# MathJax comes with the pages, in one file, so that formulas need no network.
(mathjax,) = PathFinder.find_spec("sphinx-mathjax-offline").submodule_search_locations
html_static_path = ["_static", f"{mathjax}/static/mathjax/tex-svg-full.js"]
mathjax_path = "tex-svg-full.js"
html_css_files = ["tosica.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "accent_color": "#3d6b8f",
    "logo": {"text": f"tosica {version}", "alt_text": "tosica: home"},
    "repository_url": repository,
    "repository_branch": "main",
    "path_to_docs": "docs",
    "use_repository_button": True,
    "use_issues_button": True,
    "use_edit_page_button": True,
    "use_source_button": True,
    # The search field is in the sidebar; without it the bar over the page is empty and goes away.
    "navbar_persistent": [],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def point_to_source(
    _: Sphinx, page: str, __: str, context: dict[str, Any], ___: object
) -> None:
    """Let the links to a page's source and to its editor lead to what people write."""
    written_by_scripts = page.startswith("benchmarks/") and page != "benchmarks/index"
    if written_by_scripts or page.startswith("api/generated/"):
        context["page_source_suffix"] = ""
    elif page.startswith("tutorials/"):
        context["doc_path"] = ""


def setup(app: Sphinx) -> None:
    """Connect what is defined above."""
    app.connect("html-page-context", point_to_source)
