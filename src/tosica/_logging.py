"""Names of the log, until all import them from ``tosica._settings``."""

from tosica._settings import (
    format_thousands,
    logger,
    only_warnings,
    query_logger,
    quiet_libraries,
    warn_user,
)

__all__ = [
    "format_thousands",
    "logger",
    "only_warnings",
    "query_logger",
    "quiet_libraries",
    "warn_user",
    "without_query_lines",
]


def without_query_lines():  # type: ignore[no-untyped-def]
    """Do not say again how a query is read."""
    return only_warnings(query_logger)
