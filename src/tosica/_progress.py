"""Progress bars of steps that take long."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tosica._settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tqdm.std import tqdm

# Seconds that a step takes without a bar.
DELAY = 2.0
# Held while a bar is drawn: a step inside of another one has none.
_bar_lock = threading.Lock()


@contextmanager
def progress(
    total: int | None, text: str, *, unit: str = "cells", enabled: bool = True
) -> Iterator[tqdm]:
    """Show the progress of a step on stderr, if that is a terminal or belongs to a notebook.

    Parameters
    ----------
    total
        Number of ``unit``; the bar appears after two seconds. With ``None`` nothing is counted, and
        the name of the step is shown while it takes place.
    text
        Name of the step.
    unit
        What is counted, in the plural.
    enabled
        Whether there is a bar. ``tosica.settings`` can switch all of them off.

    Yields
    ------
    The bar: ``update(n)`` counts ``n`` more, and ``set_description`` renames the step.
    """
    # In a notebook, bars are widgets.
    from tqdm.auto import tqdm

    is_wanted = enabled and settings.shows_progress and is_watched()
    is_drawn = is_wanted and _bar_lock.acquire(blocking=False)
    is_counted = total is not None
    try:
        with tqdm(
            total=total,
            desc=text,
            unit=f" {unit}",
            bar_format=None if is_counted else "{desc}",
            delay=DELAY if is_counted else 0.0,
            leave=is_counted,
            file=sys.stderr,
            disable=not is_drawn,
        ) as bar:
            yield bar
    finally:
        if is_drawn:
            _bar_lock.release()


def is_watched() -> bool:
    """Whether stderr is a terminal or belongs to a notebook, so that somebody may be looking."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and "IPKernelApp" in shell.config:
        return True
    # A process without a console has no stderr.
    return sys.stderr is not None and sys.stderr.isatty()
