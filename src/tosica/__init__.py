"""Annotate single cells with a Transformer whose tokens are gene sets, and read why."""

from importlib.metadata import version

from tosica import datasets, get, gs, io, model, pl, pp, tl
from tosica._report import report
from tosica.model import TOSICA

__all__ = ["TOSICA", "datasets", "get", "gs", "io", "model", "pl", "pp", "report", "tl"]

__version__ = version("tosica")
