"""Plots of annotated data: `tosica.pl`."""

from tosica.pl._attention_heatmap import attention_heatmap
from tosica.pl._confusion import confusion
from tosica.pl._mask_coverage import mask_coverage

__all__ = ["attention_heatmap", "confusion", "mask_coverage"]
