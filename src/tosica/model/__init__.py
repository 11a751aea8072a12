"""The model class, and what reads its reference from a collection on disk."""

from tosica.model._annbatch import AnnbatchDataModule
from tosica.model._tosica import TOSICA

__all__ = ["TOSICA", "AnnbatchDataModule"]
