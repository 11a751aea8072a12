"""Gene activity of ATAC-seq as a kind of modality."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tosica.data._log_normalized_kind import LogNormalizedKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

# A chromosome or contig and two positions: chr1:100-200, chr1-100-200, chr1_100_200.
_PEAK = r"[\w.]+[:_-]\d+[-_]\d+"


class GeneActivity(LogNormalizedKind):
    """Fragments of ATAC-seq counted over each gene: counts, or log-normalised."""

    role = "atac"
    title = "gene activity"
    noun = "gene activity"
    values: ClassVar[Mapping[str, str]] = {
        "counts": "counts of gene activity",
        "log1p": "log-normalised gene activity",
    }
    mismatch_advice = "was gene activity computed for the genes of another annotation?"
    empty_cells = "have no gene activity in the model's genes"

    def check_names(self, names: pd.Index, name: str) -> None:
        """Refuse a matrix whose columns are peaks, not genes."""
        is_peak = names.astype(str).str.fullmatch(_PEAK)
        if 2 * is_peak.sum() > len(names):
            raise ValueError(
                f"{name} holds peaks (such as {str(names[is_peak][0])!r}), not gene activity: "
                "compute gene activities first, for example with snapatac2.pp.make_gene_matrix or "
                "Signac's GeneActivity."
            )
