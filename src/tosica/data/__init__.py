"""Read expression matrices in any container and on any scale, in the order of a model's genes.

``_matrix``
    Blocks of cells of one matrix of an AnnData; annotations of a lazily opened one.
``_mudata``
    Modalities of a MuData by role, their cells in one order, side by side.
``_scale``
    Tell counts and their logarithms, and refuse everything else.
``_normalize``
    Normalize counts.
``_reference_scale``
    Find the total of a reference.
``_query_scale``
    Bring a query to that total.
``_modality_kinds``
    RNA, antibodies and gene activity: which of the above each uses.
``_find_genes``
    Match the genes of a query with those of a model.
``_aligned_cells``
    Read the cells of a query, aligned and normalized.
"""

from tosica.data._aligned_cells import AlignedCells, CellBatch, EmptyCellsWarning
from tosica.data._find_genes import find_genes
from tosica.data._matrix import (
    BLOCK,
    CellMatrix,
    ExpressionSource,
    check_unique,
    check_varies,
    load_annotations,
    load_table,
)
from tosica.data._modality_kinds import MODALITY_KINDS, ModalityKind, ModalityScale
from tosica.data._mudata import (
    DEFAULT_MODALITIES,
    JointMatrix,
    cell_indexers,
    check_mudata,
    reindex_obs,
    resolve_modalities,
)
from tosica.data._normalize import (
    TARGET_SUM,
    Block,
    CenteredLogRatio,
    LogNormalization,
    ModalitySlice,
    Normalization,
)
from tosica.data._reference_scale import Scale
from tosica.data._scale import (
    are_factor_codes,
    checked_blocks,
    describe_unscaled,
    detect,
    detect_values,
    sample_positions,
)
