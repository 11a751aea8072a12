"""Labels, gene sets, genes and weights of a model, from its registry and its module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scvi.model.base import BaseModelClass

from tosica._validation import check_choice, check_flags
from tosica.model._checkpoint import fingerprint
from tosica.model._label_type import LabelType
from tosica.model._labels_field import LabelsField
from tosica.model._modalities import Modality, is_joint, lay_out_tokens, read_modalities
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from tosica.linear import NoveltyStatistics
    from tosica.module import TokenLayout, TOSICAModule


class RegistryMixin(BaseModelClass):
    """Read access to labels, gene sets, genes and weights."""

    if TYPE_CHECKING:  # scvi-tools' class has no types
        module: TOSICAModule
        registry_: dict[str, Any]
        history_: Any

    held_out_probabilities_: np.ndarray | None = None
    """Probability of the true label of each held-out cell, a row for each choice of modalities."""
    held_out_codes_: np.ndarray | None = None
    """Codes of the true and of the best label of each held-out cell, before the refit,
    ``(2, n_cells)``."""
    label_counts_: dict[str, int] | None = None
    """Number of cells of each label that the model was trained on or calibrated on."""
    novelty_statistics_: NoveltyStatistics | None = None
    """Means, variances and components of the reference, by which the novelty of cells is scored."""
    refitted_: bool = False
    """Whether the model was trained on the held-out cells after calibration."""
    # Positions in the reference; users read `mislabeled_indices`.
    mislabeled_indices_: np.ndarray | None = None

    @property
    def mislabeled_indices(self) -> np.ndarray | None:
        """Positions of the reference's cells that :meth:`train` left out for their labels.

        Of the reference that the model was trained on, and empty if there are none or labels were
        not checked. ``None`` before training, and for models that were trained before labels were
        checked or by the original code.
        """
        return self.mislabeled_indices_

    @property
    def labels(self) -> list[str]:
        """The labels that the model knows, as text, in the reference's order."""
        state = self._state(REGISTRY_KEYS.LABELS_KEY)
        names = [str(name) for name in state[LabelsField.CATEGORICAL_MAPPING_KEY]]
        return [name for name in names if name != state[LabelsField.UNLABELED_KEY]]

    @property
    def _label_type(self) -> LabelType:
        """Type of the labels of the reference."""
        return LabelType.load(self._state(REGISTRY_KEYS.LABELS_KEY).get(LabelsField.TYPE_KEY))

    @property
    def _typed_labels(self) -> np.ndarray:
        """The labels in the type of the reference's, ``(n_labels,)``."""
        return self._label_type.values(self.labels)

    @property
    def gene_sets(self) -> list[str]:
        """Names of the gene sets, in the order of the mask, without unannotated tokens."""
        tokens = self._tokens
        return list(tokens.names[: tokens.n_gene_sets])

    def get_gene_weights(self, how: Literal["mean", "max"] = "mean") -> pd.DataFrame:
        """Get how strongly each gene feeds each gene set.

        Parameters
        ----------
        how
            ``"mean"`` of the absolute weights over the width of a token (the paper), or ``"max"``
            (the paper's code).

        Returns
        -------
        Table ``(n_genes, n_tokens)``, float32, zero outside the mask; unannotated tokens last.
        """
        check_choice("how", how, ("mean", "max"))
        tokens = self._tokens
        weights = self.module.embedding.gene_weights(how).float().cpu().numpy()
        shape = (self.module.embedding.n_genes, self.module.embedding.n_tokens)
        table = sp.csc_matrix((weights, tokens.genes, tokens.indptr), shape=shape).toarray()
        names = np.array(tokens.names, dtype=object)
        return pd.DataFrame(table, index=self._var_names, columns=names)

    def get_linear_weights(self) -> pd.DataFrame:
        """Get what each gene adds to the logit of each label through each token of it.

        These are the weights of the logistic regressions, divided by their temperature and
        multiplied by the weight of the linear branch relative to the network, minus the mean of all
        labels. The weight of a gene is the sum over its tokens.

        Returns
        -------
        Table with one row a pair of token and gene, indexed by ``gene_set`` and ``gene``, and one
        column a label, float32: the change of a label's logit for each unit of log-normalised
        expression.

        Raises
        ------
        ValueError
            If the model has no linear branch.
        """
        linear = self.module.linear
        if linear is None:
            raise ValueError(
                "The model has no linear branch: it was made with linear=False, of a MuData or by "
                "the original code."
            )
        tokens = self._tokens
        sets = np.repeat(np.array(tokens.names, dtype=object), np.diff(tokens.indptr))
        index = pd.MultiIndex.from_arrays(
            [sets, self._var_names[tokens.genes]], names=["gene_set", "gene"]
        )
        return pd.DataFrame(linear.weight.T.cpu().numpy(), index=index, columns=self.labels)

    def get_var_names(
        self, legacy_mudata_format: bool = False
    ) -> np.ndarray | dict[str, np.ndarray]:
        """Get the names of the model's genes, in the model's order.

        Parameters
        ----------
        legacy_mudata_format
            For a model of several modalities: give the names of all in one array.

        Returns
        -------
        An array; for a model of several modalities a dict of one array for each.
        """
        check_flags(legacy_mudata_format=legacy_mudata_format)
        names = [modality.genes.to_numpy() for modality in self._modalities]
        if legacy_mudata_format or not is_joint(self.registry_):
            return np.concatenate(names)
        return {str(m.name): n for m, n in zip(self._modalities, names, strict=True)}

    @property
    def fingerprint(self) -> str:
        """Sixteen characters that tell this model from any other.

        They depend on the weights and on the names of labels, genes and gene sets.
        """
        names = self.labels, self._var_names, self.gene_sets
        return fingerprint(self.module.state_dict(), *names)

    def _state(self, registry_key: str) -> dict[str, Any]:
        return self.registry_["field_registries"][registry_key]["state_registry"]

    @property
    def _modalities(self) -> list[Modality]:
        """The model's modalities; one without a name if the reference is an AnnData."""
        return read_modalities(self.registry_)

    @property
    def _tokens(self) -> TokenLayout:
        """The tokens of all modalities."""
        return lay_out_tokens(self._modalities)

    @property
    def _var_names(self) -> np.ndarray:
        names = [name for modality in self._modalities for name in modality.label(modality.genes)]
        return np.array(names, dtype=object)
