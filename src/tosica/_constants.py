"""Old name of what is in ``tosica._obs``."""

from tosica._obs import HETEROGENEOUS, UNKNOWN  # noqa: F401
