"""The model class, its reference from a collection on disk, and its queries in minibatches."""

from tosica.model._annbatch import AnnbatchReader
from tosica.model._annotation_result import AnnotationResult
from tosica.model._query_loader import Minibatch
from tosica.model._tosica import TOSICA

__all__ = ["TOSICA", "AnnbatchReader", "AnnotationResult", "Minibatch"]
