"""Annotate single cells with a Transformer whose tokens are gene sets, and read why."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

# Gives the logger its level, which users may want to change right after the import.
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

# Torch and scanpy take seconds to import, so that each package is imported when it is first used.
# What is no package of its own is listed with the module that it is from.
_MODULE_OF = {"TOSICA": "tosica.model", "report": "tosica._report"}
# Found as well, by those who look inside.
_NOT_PUBLIC = ("data", "hub", "linear", "module", "ondisk")

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
