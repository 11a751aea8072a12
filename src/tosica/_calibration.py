"""Old name of what is in ``tosica._stats``."""

from tosica._stats import conformal_threshold, fit_temperature, label_sets  # noqa: F401
