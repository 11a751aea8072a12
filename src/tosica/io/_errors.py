"""Errors of the readers, as one sentence for the user."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tosica._files import explain_hdf5
from tosica._text import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator


class ReadError(ValueError):
    """A sentence for the user, which :func:`explain_damage` raises as ``kind``."""

    def __init__(self, sentence: str, kind: type[Exception] = ValueError) -> None:
        super().__init__(sentence)
        self.kind = kind


@contextmanager
def explain_damage(path: object) -> Iterator[None]:
    """Turn the errors of libraries on a damaged file into one sentence, a ``ValueError``."""
    try:
        yield
    except ReadError as error:
        raise error.kind(*error.args) from error.__cause__
    except (ImportError, MemoryError, PermissionError, FileNotFoundError):
        raise
    except Exception as error:
        raise ValueError(
            f"{str(path)!r} is damaged, or laid out in a way that is not known "
            f"({type(error).__name__}: {first_line(error):.150}): {explain_hdf5(error)}."
        ) from error
