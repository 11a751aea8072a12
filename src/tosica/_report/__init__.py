"""A page about an annotation, for the biologist who has to judge it."""

from tosica._report._report import SAMPLED_FROM, report

__all__ = ["SAMPLED_FROM", "report"]
