"""Annotate single cells with a Transformer whose tokens are gene sets, and read why."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

# This import sets the level of the logger, which users may change right after it.
from tosica._settings import settings

if TYPE_CHECKING:
    from tosica import datasets, get, gs, io, model, onto, pl, pp, tl
    from tosica._report import report
    from tosica.model import TOSICA

__all__ = [
    "TOSICA",
    "datasets",
    "get",
    "gs",
    "io",
    "model",
    "onto",
    "pl",
    "pp",
    "report",
    "settings",
    "tl",
]

# Torch and scanpy take seconds to import, so subpackages are imported at first use.
# Re-exported names and their modules.
_MODULE_OF = {"TOSICA": "tosica.model", "report": "tosica._report"}
# Subpackages for developers, which are not listed by dir().
_NOT_PUBLIC = ("data", "linear", "module", "ondisk")

__version__ = version("tosica")


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    elif name in __all__ or name in _NOT_PUBLIC:
        value = import_module(f"tosica.{name}")
    else:
        raise AttributeError(f"module 'tosica' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
