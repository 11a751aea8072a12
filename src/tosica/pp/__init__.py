"""Prepare data for the model: gene set masks."""

from tosica.pp._build_mask import build_mask

__all__ = ["build_mask"]
