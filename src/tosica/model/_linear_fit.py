"""Fit the linear branch to the reference, and initialize the tokens from its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from tosica import linear
from tosica._settings import warn_user
from tosica._text import list_names
from tosica.data import normalize

# Cells that are read densely at once.
_CELLS_AT_ONCE = 512

if TYPE_CHECKING:
    from tosica.data import ModalitySlice
    from tosica.model._reference import ReferenceData
    from tosica.module import TOSICAModule

# Cells by which the size of the tokens' first weights is measured.
_N_START_CELLS = 256


class _View(NamedTuple):
    """What a regression sees of the tokens and the genes: all, or those of one modality."""

    tokens: sp.csr_matrix
    slices: tuple[ModalitySlice, ...]

    def of_modality(self, part: ModalitySlice) -> _View:
        genes = slice(part.start, part.stop)
        tokens = self.tokens[:, genes]
        held = tokens.getnnz(axis=1) > 0
        return _View(tokens[held], (part,))

    def read(self, rows: linear.LabeledRows) -> linear.LabeledRows:
        """Cells that were measured in the view's modality."""
        if self.slices == rows.slices:
            return rows
        rows = replace(rows, slices=self.slices)
        blocks = np.array_split(
            np.arange(len(rows.cells)), len(rows.cells) // _CELLS_AT_ONCE + 1
        )
        return rows[
            np.concatenate(
                [rows[block].expression().getnnz(axis=1) > 0 for block in blocks]
            )
        ]


@dataclass
class LinearFit:
    """Logistic regressions whose weights go through the tokens of a module.

    They are cross-validated once, on all labelled cells, then fitted to the training cells, and
    after ``data.add_validation_to_train()`` to all cells.

    Parameters
    ----------
    module
        The module with the linear branch.
    data
        Which cells of the reference are trained on, and which are held out.
    rows
        All cells of the reference.
    labels
        Names of the labels, for warnings.
    """

    module: TOSICAModule
    data: ReferenceData
    rows: linear.LabeledRows
    labels: list[str]

    def __post_init__(self) -> None:
        data, module = self.data, self.module
        # The same for both fits: held-out cells judge the model that is fitted to all cells.
        self.weight = linear.linear_to_network_ratio(data.n_train + data.n_val)
        of_all = _View(token_genes(module), module.slices)
        parts = module.slices if len(module.slices) > 1 else ()
        self._views = [of_all, *(of_all.of_modality(part) for part in parts)]
        cells = np.union1d(data.train_idx, data.val_idx)
        self._chosen = [
            linear.cross_validate(view.read(self.rows[cells]), view.tokens)
            for view in self._views
        ]
        self.fit()
        inactive = [self.labels[code] for code in self._fitted[0].inactive]
        if inactive:
            warn_user(
                f"No gene set distinguishes these labels: {list_names(inactive)}. Their attributions are shared "
                "equally among the gene sets that hold a gene, and mean little: check that these labels are cell "
                "types, or pass gene sets that describe them to build_mask."
            )

    @property
    def penalties(self) -> linear.CrossValidated:
        """Penalties of the regression of all modalities."""
        return self._chosen[0]

    def fit(self) -> None:
        """Fit the regressions, to the training cells as they are now; with several modalities, also to each alone."""
        rows = self.rows[self.data.train_idx]
        self._fitted: list[linear.LinearClassifier] = [
            linear.fit_linear_classifier(
                view.read(rows),
                len(self.labels),
                view.tokens,
                weight=1.0,
                **chosen._asdict(),
            )
            for view, chosen in zip(self._views, self._chosen, strict=True)
        ]
        present, codes = np.unique(rows.labels, return_inverse=True)
        raised = linear.logit_adjustment(codes)
        # Of the network's logits, the same as the regressions'. Softmax does not depend on what is the
        # same for all labels.
        self.adjustment = torch.zeros(len(self.labels))
        self.adjustment[present] = torch.from_numpy(raised - raised.mean()).float()

    def to_module(self) -> None:
        """Write the regressions to the linear branch, with their weight beside the network."""
        branch, (fitted, *alone) = self.module.linear, self._fitted
        if branch is None:
            return
        branch.weight.copy_(self.weight * torch.from_numpy(fitted.weights))
        branch.bias.copy_(
            self.weight * torch.from_numpy(fitted.biases) + self.adjustment
        )
        branch.clip_max.copy_(torch.from_numpy(fitted.clip_max))
        if alone:
            # Pairs are in the order of the tokens, and tokens in that of the modalities.
            weights = np.concatenate(
                [of_modality.weights for of_modality in alone], axis=1
            )
            biases = np.stack([of_modality.biases for of_modality in alone], axis=1)
            branch.weight_alone.copy_(self.weight * torch.from_numpy(weights))
            branch.bias_alone.copy_(
                self.weight * torch.from_numpy(biases) + self.adjustment[:, None]
            )

    def init_tokens(self) -> None:
        """Initialize each token from the weights of its genes in the regressions."""
        rows, device = self.rows[self.data.train_idx], self.module.device
        x = torch.from_numpy(
            rows.subsample(_N_START_CELLS).expression().toarray()
        ).float()
        weights = torch.from_numpy(
            self._fitted[0].weights[np.unique(rows.labels)]
        ).float()
        self.module.embedding.init_from_linear(
            weights.to(device), x.to(device), x.mean(0).to(device)
        )


def token_genes(module: TOSICAModule) -> sp.csr_matrix:
    """Get which gene is in which token of a module, ``(n_tokens, n_genes)``."""
    embedding = module.embedding
    indptr, genes = embedding.indptr.cpu().numpy(), embedding.genes.cpu().numpy()
    shape = (embedding.n_tokens, embedding.n_genes)
    return sp.csr_matrix((np.ones(len(genes)), genes, indptr), shape=shape)


@torch.no_grad()
def fit_baseline(module: TOSICAModule, data: ReferenceData) -> None:
    """Write the mean of the labels' mean cells, so that a frequent type does not hide in it.

    Cells that lack a modality do not count there.
    """
    codes = data.codes[data.train_idx]
    sample = linear.subsample_by_label(codes, linear.MAX_CELLS)
    cells, codes = data.train_idx[sample], codes[sample]
    shape = (len(np.unique(codes)), module.embedding.n_genes)
    total, n_cells = torch.zeros(shape), torch.zeros(shape)
    for i, code in enumerate(np.unique(codes)):
        of_label = cells[codes == code]
        for first in range(0, len(of_label), _CELLS_AT_ONCE):
            block = data.rows.take(of_label[first : first + _CELLS_AT_ONCE])
            dense = sp.csr_matrix(block).toarray()
            x = normalize(torch.from_numpy(dense.astype(np.float32)), module.slices)
            for part in module.slices:
                of_modality = x[:, part.start : part.stop]
                total[i, part.start : part.stop] += of_modality.sum(0)
                n_cells[i, part.start : part.stop] += int(of_modality.any(1).sum())
    module.baseline.copy_((total / n_cells.clamp(min=1)).mean(0))
