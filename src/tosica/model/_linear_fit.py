"""Fit the linear branch to the reference, and initialize the tokens from its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch
from scipy.special import softmax

from tosica import linear
from tosica._settings import warn_user
from tosica._text import list_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosica.data import ModalitySlice
    from tosica.model._levels import LabelLevel
    from tosica.model._reference import ReferenceData
    from tosica.module import TOSICAModule

# Cells that are read densely at once.
_BLOCK_SIZE = 512
# Cells by which the size of the tokens' first weights is measured.
_N_START_CELLS = 256
# Weight of the linear branch that leaves nothing of the network.
LINEAR_ONLY = 1000.0


@dataclass(frozen=True)
class _Features:
    """Inputs of one regression: the tokens and genes of all modalities, or of one."""

    tokens: sp.csr_matrix
    slices: tuple[ModalitySlice, ...]

    def of_modality(self, modality: ModalitySlice) -> _Features:
        """Select the tokens and genes of a modality."""
        tokens = self.tokens[:, modality.start : modality.stop]
        return _Features(tokens[tokens.getnnz(axis=1) > 0], (modality,))

    def select(self, rows: linear.LabeledRows) -> linear.LabeledRows:
        """Select the cells that were measured in the modality."""
        if self.slices == rows.slices:
            return rows
        rows = replace(rows, slices=self.slices)
        n_cells = len(rows.cells)
        blocks = np.array_split(np.arange(n_cells), n_cells // _BLOCK_SIZE + 1)
        n_expressed = [rows[block].expression().getnnz(axis=1) for block in blocks]
        return rows[np.concatenate(n_expressed) > 0]


@dataclass
class LinearFit:
    """Logistic regressions whose weights go through the tokens of a module.

    They are cross-validated once, on all labeled cells, then fitted to the training cells, and
    after ``data.add_validation_to_train()`` to all cells.

    Parameters
    ----------
    module
        The module with the linear branch.
    data
        Training cells and held-out cells of the reference.
    rows
        All cells of the reference.
    labels
        Names of the labels, for warnings.
    levels
        Groups of the labels on broader levels.
    """

    module: TOSICAModule
    data: ReferenceData
    rows: linear.LabeledRows
    labels: list[str]
    levels: Sequence[LabelLevel] = ()

    def __post_init__(self) -> None:
        data = self.data
        module = self.module
        # The same for both fits: held-out cells judge the model that is fitted to all cells.
        self.weight = linear.linear_to_network_ratio(data.n_train + data.n_val)
        all_modalities = _Features(token_genes(module), module.slices)
        self._features = [all_modalities]
        if len(module.slices) > 1:
            self._features += map(all_modalities.of_modality, module.slices)
        rows = self.rows[np.union1d(data.train_idx, data.val_idx)]
        self._penalties = [
            linear.cross_validate(
                features.select(rows), features.tokens, self._groups_of_labels
            )
            for features in self._features
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
        return self._penalties[0]

    @property
    def _groups_of_labels(self) -> list[np.ndarray]:
        return [np.array(level.codes) for level in self.levels]

    def fit(self) -> None:
        """Fit the regressions to the training cells, with several modalities also to each alone."""
        rows = self.rows[self.data.train_idx]
        self._fitted = []
        for features, penalties in zip(self._features, self._penalties, strict=True):
            cells = features.select(rows).subsample(linear.MAX_CELLS)
            fitted = linear.fit_classifier(
                cells.expression(),
                cells.labels,
                len(self.labels),
                features.tokens,
                penalties,
                cells.slices,
                self._groups_of_labels,
            )
            self._fitted.append(fitted)
        codes_present, codes = np.unique(rows.labels, return_inverse=True)
        adjustment = linear.logit_adjustment(codes)
        # The network's logits get the adjustment of the regressions. Softmax does not depend on a
        # constant that is added to all labels.
        adjustment = adjustment - adjustment.mean()
        self.adjustment = torch.zeros(len(self.labels))
        self.adjustment[codes_present] = torch.from_numpy(adjustment).float()

    def probabilities(self, x: sp.csr_matrix) -> np.ndarray:
        """Compute probabilities by all modalities, ``(n_cells, n_labels)``."""
        fitted = self._fitted[0]
        clipped = x.copy()
        clipped.data = np.minimum(x.data, fitted.clip_max[x.indices])
        probabilities: np.ndarray = softmax(
            clipped @ fitted.weights.T + fitted.biases, axis=1
        )
        return probabilities

    def to_module(self) -> None:
        """Write the regressions to the linear branch, with their weight beside the network."""
        branch = self.module.linear
        if branch is None:
            return
        fitted, *by_modality = self._fitted
        biases = self.weight * torch.from_numpy(fitted.biases) + self.adjustment
        branch.weights.copy_(self.weight * torch.from_numpy(fitted.weights))
        branch.bias.copy_(biases)
        branch.clip_max.copy_(torch.from_numpy(fitted.clip_max))
        if by_modality:
            weights = np.concatenate([fit.weights for fit in by_modality], axis=1)
            biases = torch.from_numpy(np.stack([fit.biases for fit in by_modality], 1))
            biases = self.weight * biases + self.adjustment[:, None]
            branch.weights_alone.copy_(self.weight * torch.from_numpy(weights))
            branch.bias_alone.copy_(biases)

    def init_tokens(self) -> None:
        """Initialize each token from the weights of its genes in the regressions."""
        device = self.module.device
        rows = self.rows[self.data.train_idx]
        expression = rows.subsample(_N_START_CELLS).expression().toarray()
        x = torch.from_numpy(expression).float()
        self.module.embedding.init_from_linear(
            torch.from_numpy(self._fitted[0].pair_weights).float().to(device),
            x.to(device),
            x.mean(0).to(device),
        )


def token_genes(module: TOSICAModule) -> sp.csr_matrix:
    """Get which gene is in which token of a module, ``(n_tokens, n_genes)``."""
    embedding = module.embedding
    genes = embedding.genes.cpu().numpy()
    indptr = embedding.indptr.cpu().numpy()
    shape = (embedding.n_tokens, embedding.n_genes)
    return sp.csr_matrix((np.ones(len(genes)), genes, indptr), shape=shape)


@torch.no_grad()
def fit_baseline(module: TOSICAModule, data: ReferenceData) -> None:
    """Write the mean of the labels' mean cells, so that a frequent type does not hide in it.

    Cells that lack a modality do not count there.
    """
    codes = data.codes[data.train_idx]
    sample = linear.subsample_by_label(codes, linear.MAX_CELLS)
    cells = data.train_idx[sample]
    codes = codes[sample]
    labels = np.unique(codes)
    total = torch.zeros(len(labels), module.embedding.n_genes)
    n_cells = torch.zeros_like(total)
    for row, label in enumerate(labels):
        of_label = cells[codes == label]
        for offset in range(0, len(of_label), _BLOCK_SIZE):
            block = data.rows.take(of_label[offset : offset + _BLOCK_SIZE])
            x = torch.from_numpy(sp.csr_matrix(block, dtype=np.float32).toarray())
            for modality in module.slices:
                genes = slice(modality.start, modality.stop)
                total[row, genes] += x[:, genes].sum(0)
                n_cells[row, genes] += int(x[:, genes].any(1).sum())
    module.baseline.copy_((total / n_cells.clamp(min=1)).mean(0))
