"""Old name of what is in ``tosica._obs``."""

from tosica._obs import (  # noqa: F401
    as_groups,
    missing_column,
    read_groups,
    read_labels,
    read_numbers,
)
