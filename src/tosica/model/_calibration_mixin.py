"""Calibrate probabilities and label sets, on held-out cells or on labelled cells of a new batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tosica._calibration import fit_temperature
from tosica._groups import read_groups
from tosica._logging import logger
from tosica._parallel import thread_map, thread_pool
from tosica._validation import check_data, list_names
from tosica.model._inference_mixin import InferenceMixin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData
    from mudata import MuData
    from torch import Tensor

    from tosica.model._query import Minibatch
    from tosica.model._query import QueryLoader as Query

# Standard deviation of the logarithm of the temperature that a new batch is expected to need,
# relative to that of the reference. It matters for a few cells, and thousands outweigh it.
_TEMPERATURE_SPREAD = 0.5


class CalibrationMixin(InferenceMixin):
    """Temperature of the probabilities, and probabilities of true labels for label sets."""

    def recalibrate(
        self,
        adata: AnnData | MuData,
        labels_key: str,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        batch_size: int | None = None,
    ) -> None:
        """Calibrate probabilities and label sets by some labelled cells of a new batch.

        Training calibrates the model on held-out cells of the reference. In another batch,
        probabilities may be too high or too low, and :meth:`predict_set` may miss its coverage.
        This method refits the temperature to cells whose labels are known, and from then on
        label sets have their coverage for cells like these. The best label of a cell stays the
        same. :meth:`annotate` the query again afterwards, since probabilities change.

        Parameters
        ----------
        adata
            Cells of the new batch, ``(n_obs, n_vars)``, as for :meth:`annotate`. They must not be
            cells that the model was trained on, and should be a random sample of the batch: cells
            that were chosen because they are easy to label make the model too confident. A MuData
            needs all modalities of the model.
        labels_key
            Column of ``adata.obs`` with the labels that are known, spelled as the model's. Cells
            without one (NaN) are left out, and so are cells whose label the model lacks.
        layer, use_raw, batch_size
            As in :meth:`annotate`.

        Raises
        ------
        KeyError
            If the column is missing.
        RuntimeError, TypeError, ValueError
            As :meth:`annotate`; if no cell has a label of the model, or a modality is missing.

        Notes
        -----
        :meth:`predict_set` needs 9 cells for a coverage of 0.9, and 19 for 0.95. With ten,
        the coverage has a standard deviation of about 0.1 between samples of labelled cells; with
        50, of about 0.05 (benchmarks/label_sets.py).

        Examples
        --------
        >>> import numpy as np
        >>> import scanpy as sc
        >>> import scvi
        >>> import tosica
        >>> scvi.settings.seed = 0
        >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> adata.obs_names_make_unique()
        >>> reference, query = adata[::2].copy(), adata[1::2].copy()
        >>> tosica.pp.build_mask(reference, max_gene_sets=30)
        >>> tosica.TOSICA.setup_anndata(reference, labels_key="bulk_labels")
        >>> model = tosica.TOSICA(reference, embed_dim=16)
        >>> model.train(max_epochs=5, enable_progress_bar=False)
        >>> query.obs["known"] = query.obs["bulk_labels"].where(np.arange(query.n_obs) % 7 == 0)
        >>> model.recalibrate(query, "known")
        >>> model.predict_set(query, coverage=0.9).shape
        (350, 10)
        """
        check_data(adata, mudata=True)
        adata = self._query(adata)
        given = read_groups(adata, labels_key, name="labels_key", allow_missing=True)
        code_of = {name: code for code, name in enumerate(self.labels)}
        # The last is for cells without a label, whose code is -1.
        code_of_group = [*(code_of.get(name, -1) for name in given.categories), -1]
        codes = np.array(code_of_group, dtype=np.int64)[given.codes]
        foreign = [name for name in given.categories if name not in code_of]
        rows = np.flatnonzero(codes >= 0)
        if not len(rows):
            raise ValueError(
                f"No cell of adata.obs[{labels_key!r}] has a label of the model, which are "
                f"{list_names(self.labels)}: spell labels as the reference does."
            )
        cells = adata if len(rows) == adata.n_obs else adata[rows]
        query = self._minibatches(cells, layer, use_raw, batch_size)
        if query.modalities != self.module.modality_choices[-1]:
            missing = [
                repr(str(modality.name))
                for i, modality in enumerate(self._modalities)
                if i not in query.modalities
            ]
            raise ValueError(
                f"The cells lack the modality {' and '.join(missing)} of the model, and with it "
                "what its label sets are calibrated on: pass cells with all modalities."
            )
        logits = self._logits_by_choice(query)
        truth = torch.from_numpy(codes[rows])
        before = float(self.module.temperature.view(-1)[-1])
        expected = self.module.temperature.view(-1).tolist()
        self._set_calibration(logits, truth, expected, spread=_TEMPERATURE_SPREAD)
        after = float(self.module.temperature.view(-1)[-1])
        logger.info(
            "recalibrate: took %d labelled cells; temperature %.3g, before %.3g%s",
            len(rows),
            after,
            before,
            f"; left out cells labelled {list_names(foreign)}, which the model lacks"
            if foreign
            else "",
        )

    @torch.inference_mode()
    def _logits_by_choice(self, query: Query) -> list[Tensor]:
        """Logits of all cells, ``(n_cells, n_labels)``, for each choice of modalities."""

        def score(minibatch: Minibatch) -> list[Tensor]:
            return [
                self.module.annotate(
                    minibatch.x, attention=False, modalities=choice, measured=minibatch.measured
                ).logits.float()
                for choice in self.module.modality_choices
            ]

        with thread_pool(self.module.device):
            parts = list(thread_map(score, query))
        return [torch.cat(of_choice) for of_choice in zip(*parts, strict=True)]

    @torch.inference_mode()
    def _set_calibration(
        self, logits: list[Tensor], labels: Tensor, expected: list[float], *, spread: float = 0.1
    ) -> None:
        """Fit a temperature for each choice of modalities, and keep what label sets need.

        Parameters
        ----------
        logits
            Shape ``(n_cells, n_labels)``, for each choice of modalities.
        labels
            Codes of the true labels, ``(n_cells,)``.
        expected, spread
            Temperature that each choice is expected to have, and how far it may be from that, as in
            :func:`~tosica._calibration.fit_temperature`.
        """
        true_label_probabilities = []
        # The fewer modalities a cell has, the less sure the model may be.
        for i, choice in enumerate(self.module.modality_choices):
            self.module.temperature.view(-1)[i] = fit_temperature(
                logits[i].cpu(), labels.cpu(), expected=expected[i], spread=spread
            )
            probabilities = self.module.probabilities(logits[i].to(self.module.device), choice)
            of_truth = probabilities.cpu().gather(1, labels.cpu()[:, None])
            true_label_probabilities.append(of_truth[:, 0].numpy())
        self.held_out_probabilities_ = np.stack(true_label_probabilities)
