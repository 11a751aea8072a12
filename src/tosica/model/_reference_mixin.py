"""The cells of the reference as a training takes them: checked, split, and their batches."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from tosica._logging import logger
from tosica.data import CellMatrix, JointMatrix
from tosica.linear import find_batch_directions, find_label_errors
from tosica.model._data_module import ReferenceData
from tosica.model._modalities import is_joint
from tosica.model._registry_mixin import RegistryMixin
from tosica.model._shuffle_buffer import BUFFER_SIZE
from tosica.model._training_checkpoint import check_identity, identify
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from tosica.model._network_fit_mixin import Course
    from tosica.model._shuffle_buffer import Blocks


class ReferenceMixin(RegistryMixin):
    """Cells, labels and batches of the reference."""

    def _batch_directions(self, data: ReferenceData, course: Course) -> np.ndarray | None:
        """Directions in which the batches of the training cells differ, if there are several."""
        if course.resumed is not None:
            saved = course.resumed["batch_directions"]
            return None if saved is None else np.asarray(saved)
        if not isinstance(data.rows, CellMatrix):
            return None
        cells = data.train_idx
        labels, batches = data.codes[cells], data.strata[cells]
        if (batches == batches[0]).all():
            return None
        course.progress.begin("batch directions")
        directions = find_batch_directions(data.rows, cells, labels, batches, self.module.slices[0])
        if directions is None:
            logger.warning(
                "train: no label has three cells in each of two batches, so that labels and "
                "batches cannot be separated, and batches are not corrected for; it takes more "
                "cells of one label in two batches"
            )
            return None
        n = len(directions)
        found = f"in {n} direction{'s' * (n > 1)} of expression, which is corrected for"
        logger.info("train: the batches differ %s", found if n else "no more than by chance")
        return directions if len(directions) else None

    def _reference_data(
        self,
        train_size: float,
        batch_size: int,
        check_labels: bool,
        course: Course,
        blocks: Blocks | None,
    ) -> ReferenceData:
        """Cells to train on and to hold out, without those whose labels look wrong."""
        modalities, resumed = self._modalities, course.resumed
        codes = self.module.label_of_code.cpu().numpy()[self._codes(REGISTRY_KEYS.LABELS_KEY)]
        rows: CellMatrix | JointMatrix
        errors = np.empty(0, dtype=np.int64)
        if is_joint(self.registry_):
            rows = JointMatrix(self.adata, {str(m.name): m.layer for m in modalities})
        else:
            rows = CellMatrix(self.adata, layer=modalities[0].layer)
            if not rows.in_memory and rows.n_obs <= BUFFER_SIZE and blocks is None:
                # It would be read many times, and fits the buffer that it would be read through.
                rows = rows.load()
            if check_labels and resumed is None:
                course.progress.begin("checking labels")
                labeled = np.flatnonzero(codes >= 0)
                errors = find_label_errors(rows, labeled, codes[labeled], self.module.slices[0])
                _warn_of_label_errors(len(errors), len(labeled))
        strata = self._codes(REGISTRY_KEYS.BATCH_KEY)
        parts, seed = None, None
        is_kept = course.checkpoint is not None or resumed is not None
        identity = identify(self, rows, codes, strata) if is_kept else {}
        if course.checkpoint is not None:
            course.checkpoint.constant["identity"] = identity
        if resumed is not None:
            check_identity(resumed, identity)
            split, seed = resumed["split"], resumed["seed"]
            errors = split["left_out"].numpy()
            parts = (split["training"].numpy(), split["validation"].numpy())
        return ReferenceData(
            rows,
            codes,
            strata,
            left_out=errors,
            validation_size=1 - train_size,
            batch_size=batch_size,
            parts=parts,
            seed=seed,
            blocks=blocks,
        )


def _warn_of_label_errors(n_errors: int, n_labeled: int) -> None:
    if n_errors:
        warnings.warn(
            f"{n_errors} of {n_labeled} labels of the reference "
            f"({n_errors / n_labeled:.0%}) are contradicted by the other cells, and these "
            "cells are left out of training: look at them in "
            "model.adata.obs_names[model.mislabeled_indices], or train with check_labels=False.",
            UserWarning,
            stacklevel=4,
        )
