"""Prepare data for the model: gene set masks, and references of several studies."""

from tosica.pp._build_mask import build_mask
from tosica.pp._join_references import join_references

__all__ = ["build_mask", "join_references"]
