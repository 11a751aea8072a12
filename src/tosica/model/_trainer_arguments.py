"""Arguments of ``train`` that go on to the trainer."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import lightning.pytorch
import scvi.train

from tosica._validation import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_trainer_arguments(given: Iterable[str], own: Iterable[str]) -> None:
    """Refuse arguments that neither ``train`` nor the trainer has, such as misspelled ones.

    Parameters
    ----------
    given
        Names of the arguments that are to go on to the trainer.
    own
        Names of the parameters of ``train``.

    Raises
    ------
    TypeError
        If the trainer has no such parameter.
    """
    known = {*own, *_TRAINER}
    for name in given:
        if name not in _TRAINER:
            raise TypeError(
                f"train has no parameter {name!r}, nor has scvi.train.Trainer"
                f"{did_you_mean(name, sorted(known), 1)}"
            )


def _parameters(function: Any) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}


_TRAINER = _parameters(scvi.train.Trainer) | _parameters(lightning.pytorch.Trainer)
