"""Old name of what is in ``tosica._obs``."""

from tosica._obs import BLUE, GRAY, GREEN, ORANGE, PURPLE, default_palette  # noqa: F401
