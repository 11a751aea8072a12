"""Annotate single cells with a Transformer whose tokens are gene sets, and read why."""

from importlib.metadata import version

from . import get, gs, model, pl, pp, tl
from .model import TOSICA

__all__ = ["TOSICA", "get", "gs", "model", "pl", "pp", "tl"]

__version__ = version("tosica")
