"""Plots of annotated data: `tosica.pl`."""

from tosica.pl._attention_heatmap import attention_heatmap
from tosica.pl._confusion import confusion

__all__ = ["attention_heatmap", "confusion"]
