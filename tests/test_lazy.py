"""The package is imported when it is used, and looks as if it had been imported at once."""

import subprocess
import sys

import pytest

import tosica


def printed(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_nothing_heavy():
    """Its names are found, and its logger has the level, which users change right after the import."""
    heavy = (
        "torch",
        "scanpy",
        "anndata",
        "pandas",
        "numpy",
        "scvi",
        "lightning",
        "rich",
    )
    code = (
        f"import sys, logging, tosica; print(sorted(set({heavy!r}) & set(sys.modules)), "
        "set(tosica.__all__) <= set(dir(tosica)), 'pp' in vars(tosica), logging.getLogger('tosica').level)"
    )
    assert printed(code) == "[] True False 20"


@pytest.mark.slow
def test_the_model_is_imported_without_plots_and_tools():
    """These import pynndescent, which takes seconds."""
    code = (
        "import sys; from tosica import TOSICA; late = {'tosica.pl', 'tosica.tl'}; "
        "print(TOSICA.__name__, sorted(late & set(sys.modules))); "
        # It compiles its functions at import.
        "import tosica.tl; print('pynndescent' in sys.modules)"
    )
    assert printed(code) == "TOSICA []\nFalse"


def test_packages_that_are_not_public_are_found(
    monkeypatch,
):
    for name in ("data", "linear", "module", "ondisk"):
        monkeypatch.delitem(vars(tosica), name, raising=False)
        assert getattr(tosica, name).__name__ == f"tosica.{name}"
    with pytest.raises(
        AttributeError, match="module 'tosica' has no attribute 'nothing'"
    ):
        _ = tosica.nothing
