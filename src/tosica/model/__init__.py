"""The model class."""

from tosica.model._tosica import TOSICA

__all__ = ["TOSICA"]
