"""One line for whatever ended a command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

# What tosica raises with a sentence for its users.
_EXPECTED = (
    *(ValueError, KeyError, TypeError, OSError, RuntimeError, ImportError),
    *(MemoryError, NotImplementedError),
)
_LONGEST = 600
# Arguments of Python whose option has another name.
_OPTION_OF = {"accelerator": "device"}


def sentence_of(error: BaseException, command: click.Command) -> str:
    """Say in one line what went wrong.

    Parameters
    ----------
    error
        What was raised. If tosica raised it for its users, the line is its sentence, in which
        arguments of Python are options of the command. Otherwise the line names the type of the
        error, and says how to see more.
    command
        The command that was run.
    """
    text = _text(error)
    if text and _is_expected(error):
        return _as_options(text, command)
    shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]}…"
    return f"{shown.rstrip('.')}; this was not expected: --debug shows where it was raised."


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        of = f": {str(error.filename)!r}" if error.filename is not None else ""
        return f"{error.strerror}{of}"
    # str() of a KeyError has quotes around it.
    first = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(first).split())


def _is_expected(error: BaseException) -> bool:
    if not isinstance(error, _EXPECTED):
        return False
    if isinstance(error, OSError) and error.strerror:
        return True
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    raised_in = "" if frame is None else str(frame.tb_frame.f_globals.get("__name__", ""))
    # A sentence has several words, and the key that a dict lacks has one as a rule.
    return raised_in.partition(".")[0] == "tosica" and " " in _text(error)


def _as_options(text: str, command: click.Command) -> str:
    """Write arguments of Python in a sentence as options: ``overwrite=True`` is ``--overwrite``."""
    text = re.sub(r"model\.annotate\([^()]*\)", "tosica annotate", text)
    advice = r"read its file with tosica\.io\.read_seurat, or repair it with [\w.]+\([^()]*\)"
    if "seurat" in {parameter.name for parameter in command.params}:
        text = re.sub(advice, "pass --seurat", text).replace("tosica.io.read_seurat", "--seurat")
    option_of = {
        str(parameter.name): max(parameter.opts, key=len)
        for parameter in command.params
        if max(parameter.opts, key=len).startswith("--")
    }
    for argument, name in _OPTION_OF.items():
        if name in option_of:
            option_of[argument] = option_of[name]
    for name, option in option_of.items():
        text = re.sub(rf"\b{name}=True\b", option, text)
        text = re.sub(rf"\b{name}=('[^']*'|[\w.+-]*[\w+-])", rf"{option} \1", text)
    return text
