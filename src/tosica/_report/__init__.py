"""A page about an annotation, for the biologist who has to judge it."""

from tosica._report._report import report

__all__ = ["report"]
