"""The model class."""

from ._tosica import TOSICA

__all__ = ["TOSICA"]
