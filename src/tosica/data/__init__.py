"""Read expression matrices in any container and on any scale, in the order of a model's genes.

Reading
    ``_cell_matrix``: blocks of cells of one matrix of an AnnData.
    ``_lazy``: read the annotations of a lazily opened AnnData into memory.
    ``_mudata``: modalities of a MuData by role, their cells in one order, side by side.
    ``_network_weights``: weights of the network that a mask was built from.
Kinds of modality
    ``_modality_kind``: what a kind does: detect the scale, align a query, normalize, describe.
    ``_rna``, ``_antibodies``, ``_gene_activity``: the kinds; ``_log_normalized_kind`` is what RNA
    and gene activity share.
    ``_modality_kinds``: all kinds by role. A new one is a class and a line there.
Scale
    ``_scale``: tell counts from log-normalised values.
    ``_transforms``: recognize which logarithm was taken, and of which totals.
    ``_odd_values``: refuse ranks, standardized genes and the like.
    ``_reference_scale``: say how a reference is scaled.
    ``_query_scale``: bring a query to the scale of the reference.
    ``_normalize``: normalize minibatches; ``_log_normalize``: whole blocks.
    ``_seurat_marks``: recognise converted Seurat objects.
Genes
    ``_align``: match the genes of a query with those of a model.
"""

from tosica.data._align import BLOCK, find_genes, user_stacklevel
from tosica.data._cell_matrix import (
    Block,
    CellMatrix,
    ExpressionSource,
    check_unique,
    check_varies,
)
from tosica.data._fractional_counts import are_fractional_counts
from tosica.data._lazy import load_annotations, load_table
from tosica.data._log_normalize import log_normalize
from tosica.data._modality_kind import (
    AlignedCells,
    CellBatch,
    EmptyCellsWarning,
    ModalityKind,
    ModalityScale,
)
from tosica.data._modality_kinds import MODALITY_KINDS
from tosica.data._mudata import (
    DEFAULT_MODALITIES,
    JointMatrix,
    cell_indexers,
    check_mudata,
    reindex_obs,
    resolve_modalities,
)
from tosica.data._network_weights import network_weights, pair_weights
from tosica.data._normalize import CenteredLogRatio, LogNormalization, ModalitySlice, Normalization
from tosica.data._scale import TARGET_SUM, Scale, check_finite, describe_unscaled, detect_values
from tosica.data._seurat_marks import are_factor_codes
from tosica.data._transforms import sample_positions

__all__ = [
    "BLOCK",
    "DEFAULT_MODALITIES",
    "MODALITY_KINDS",
    "TARGET_SUM",
    "AlignedCells",
    "Block",
    "CellBatch",
    "CellMatrix",
    "CenteredLogRatio",
    "EmptyCellsWarning",
    "ExpressionSource",
    "JointMatrix",
    "LogNormalization",
    "ModalityKind",
    "ModalityScale",
    "ModalitySlice",
    "Normalization",
    "Scale",
    "are_factor_codes",
    "are_fractional_counts",
    "cell_indexers",
    "check_finite",
    "check_mudata",
    "check_unique",
    "check_varies",
    "describe_unscaled",
    "detect_values",
    "find_genes",
    "load_annotations",
    "load_table",
    "log_normalize",
    "network_weights",
    "pair_weights",
    "reindex_obs",
    "resolve_modalities",
    "sample_positions",
    "user_stacklevel",
]
