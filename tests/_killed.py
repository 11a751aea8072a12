"""Call something in a process of its own, which dies in the midst of it or has a full disk."""

from __future__ import annotations

import os
import resource
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Of Python's audit events those that change or read files.
_OPERATIONS = {
    *("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.chmod"),
    *("os.scandir", "os.listdir", "shutil.rmtree", "shutil.copymode"),
}


def killed_at(call: Callable[[], Any], folder: Path, operation: int, by: int = signal.SIGKILL) -> bool:
    """Kill the process at an operation on files below a folder; ``False`` if there are fewer."""

    def prepare() -> None:
        count = 0

        def count_down(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if event in _OPERATIONS and str(arguments[0]).startswith(str(folder)):
                count += 1
                if count == operation:
                    os.kill(os.getpid(), by)

        sys.addaudithook(count_down)

    return _killed(call, prepare)


def with_full_disk(call: Callable[[], Any], size: int) -> None:
    """Call in a process that can write no file larger than ``size`` bytes."""

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    assert not _killed(call, prepare)


def _killed(call: Callable[[], Any], prepare: Callable[[], None]) -> bool:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            prepare()
            call()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)
