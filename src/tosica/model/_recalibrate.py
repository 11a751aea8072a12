"""Fit the temperature of a model to labeled cells, and keep what label sets need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tosica._checks import list_names
from tosica._obs import read_groups
from tosica._parallel import thread_map, thread_pool
from tosica._settings import logger
from tosica._stats import fit_temperature

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData
    from mudata import MuData
    from torch import Tensor

    from tosica.model._annotation import AnnotationMixin
    from tosica.model._query import Minibatch, QueryLoader
    from tosica.model._setup import SetupMixin

# Standard deviation of the logarithm of the temperature that a new batch is expected to need,
# relative to that of the reference. It matters for a few cells, and thousands outweigh it.
_TEMPERATURE_SPREAD = 0.5


def recalibrate(
    model: AnnotationMixin,
    adata: AnnData | MuData,
    labels_key: str,
    *,
    layer: str | Mapping[str, str] | None,
    use_raw: bool,
    batch_size: int | None,
) -> None:
    """Calibrate a model on labeled cells of a new batch, as :meth:`TOSICA.recalibrate` does."""
    given = read_groups(adata, labels_key, name="labels_key", allow_missing=True)
    code_of = {name: code for code, name in enumerate(model.labels)}
    # The last is for cells without a label, whose code is -1.
    code_of_group = [*(code_of.get(name, -1) for name in given.categories), -1]
    codes = np.array(code_of_group, dtype=np.int64)[given.codes]
    foreign = [name for name in given.categories if name not in code_of]
    rows = np.flatnonzero(codes >= 0)
    if not len(rows):
        raise ValueError(
            f"No cell of adata.obs[{labels_key!r}] has a label of the model, which are "
            f"{list_names(model.labels)}: spell labels as the reference does."
        )
    cells = adata if len(rows) == adata.n_obs else adata[rows]
    query = model._minibatches(cells, layer, use_raw, batch_size)
    if query.modalities != model.module.modality_choices[-1]:
        missing = [repr(str(modality.name)) for i, modality in enumerate(model.modalities) if i not in query.modalities]
        raise ValueError(
            f"The cells lack the modality {' and '.join(missing)} of the model, and with it "
            "what its label sets are calibrated on: pass cells with all modalities."
        )
    logits = _logits_by_choice(model, query)
    truth = torch.from_numpy(codes[rows])
    before = float(model.module.temperature.view(-1)[-1])
    expected = model.module.temperature.view(-1).tolist()
    set_calibration(model, logits, truth, expected, spread=_TEMPERATURE_SPREAD)
    after = float(model.module.temperature.view(-1)[-1])
    logger.info(
        "recalibrate: took %d labelled cells; temperature %.3g, before %.3g%s",
        len(rows),
        after,
        before,
        f"; left out cells labelled {list_names(foreign)}, which the model lacks" if foreign else "",
    )


@torch.inference_mode()
def _logits_by_choice(model: AnnotationMixin, query: QueryLoader) -> list[Tensor]:
    """Compute logits of all cells, ``(n_cells, n_labels)``, for each choice of modalities."""
    module = model.module

    def score(minibatch: Minibatch) -> list[Tensor]:
        return [
            module.annotate(minibatch.x, attention=False, modalities=choice, measured=minibatch.measured).logits.float()
            for choice in module.modality_choices
        ]

    with thread_pool(module.device):
        parts = list(thread_map(score, query))
    return [torch.cat(of_choice) for of_choice in zip(*parts, strict=True)]


@torch.inference_mode()
def set_calibration(
    model: SetupMixin, logits: list[Tensor], labels: Tensor, expected: list[float], *, spread: float = 0.1
) -> None:
    """Fit a temperature for each choice of modalities, and keep probabilities for label sets.

    Parameters
    ----------
    model
        The model.
    logits
        Shape ``(n_cells, n_labels)``, for each choice of modalities.
    labels
        Codes of the true labels, ``(n_cells,)``.
    expected, spread
        Temperature that each choice is expected to have, and how far it may be from that, as in
        :func:`~tosica._stats.fit_temperature`.
    """
    module, labels = model.module, labels.cpu()
    true_label_probabilities = []
    # The fewer modalities a cell has, the less sure the model may be.
    for i, choice in enumerate(module.modality_choices):
        module.temperature.view(-1)[i] = fit_temperature(logits[i].cpu(), labels, expected=expected[i], spread=spread)
        probabilities = module.probabilities(logits[i].to(module.device), choice)
        of_truth = probabilities.cpu().gather(1, labels[:, None])
        true_label_probabilities.append(of_truth[:, 0].numpy())
    model.held_out_probabilities_ = np.stack(true_label_probabilities)
