"""What a kind of modality, such as RNA or antibodies, has to know of itself."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from tosica.data._align import BLOCK, match_names, reindex_genes, user_stacklevel
from tosica.data._cell_matrix import check_unique

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

    from tosica.data._cell_matrix import Block, CellMatrix
    from tosica.data._normalize import Normalization


class CellBatch(NamedTuple):
    """Some cells of a query.

    ``start`` is the position of the first cell. ``values`` is ``(n_cells, n_genes)``, float32 if
    the columns are the model's genes. ``is_counts`` says whether they are still to be normalized.
    ``total`` is then what each cell's counts are divided by, ``(n_cells,)``, or ``None`` for their
    sum over ``values``.
    """

    start: int
    values: Block
    is_counts: bool
    total: np.ndarray | None = None


class EmptyCellsWarning(UserWarning):
    """Some cells of a query have nothing in any gene of the model.

    Parameters
    ----------
    n_cells
        Number of these cells.
    what
        What is wrong with them, as :attr:`ModalityKind.empty_cells` says it.
    """

    def __init__(self, n_cells: int, what: str) -> None:
        super().__init__(f"{n_cells} cells of the query {what}; their labels mean nothing.")
        self.n_cells = n_cells
        self.what = what


class ModalityScale(Protocol):
    """How the matrix of a reference is scaled: a named tuple that a model saves as a dict.

    ``kind`` is ``"counts"``, or what else the matrix holds.
    """

    @property
    def kind(self) -> str:
        """What the matrix holds."""

    def _asdict(self) -> dict[str, Any]: ...


S = TypeVar("S", bound=ModalityScale)


class ModalityKind(ABC, Generic[S]):
    """One kind of modality: it detects, normalizes, aligns and describes its values.

    A kind has no state of its own. What a model knows of a reference is the ``scale``, which
    :meth:`detect_scale` makes. A new kind is a subclass and a line in
    :data:`~tosica.data.MODALITY_KINDS`.
    """

    #: Key of ``modalities`` in ``setup_mudata``.
    role: ClassVar[str]
    #: Name in messages.
    title: ClassVar[str]
    #: What the columns of the matrix are.
    features: ClassVar[str] = "genes"
    #: Whether tokens are gene sets of the collection; otherwise single features or groups of them.
    has_gene_sets: ClassVar[bool] = True
    #: Name of the values for each ``kind`` of the scale.
    values: ClassVar[Mapping[str, str]]
    #: Why a query may lack features of the model, as a question.
    mismatch_advice: ClassVar[str]
    #: What is wrong with a query's cells that are zero everywhere; ``None`` if nothing is.
    empty_cells: ClassVar[str | None] = None

    @abstractmethod
    def detect_scale(self, matrix: CellMatrix) -> S:
        """Read a whole reference, or its modality of this kind, once and say how it is scaled.

        Raises
        ------
        ValueError
            If the values cannot be those of this kind, or are all zero.
        """

    @abstractmethod
    def load_scale(self, state: Mapping[str, Any]) -> S:
        """Make the scale from the dict that a model saved, also from that of an older version."""

    @abstractmethod
    def normalization(self, scale: S) -> Normalization | None:
        """How counts become what the model takes; ``None`` if that cannot be known."""

    @abstractmethod
    def read_query(
        self,
        matrix: CellMatrix,
        scale: S,
        columns: np.ndarray,
        share: float,
        size: int,
        sample: CellMatrix,
    ) -> Iterator[CellBatch]:
        """Read a query in blocks of ``size`` cells, each checked and brought to the scale.

        Parameters
        ----------
        matrix
            Matrix of the query.
        scale
            Scale of the reference.
        columns
            Which columns are features of the model, bool, ``(n_vars,)``.
        share
            Share of the model's features that the query has.
        size
            Cells in a block.
        sample
            Matrix by which the scale is recognized: ``matrix``, or cells from all over the query
            if ``matrix`` is a part of it.
        """

    def keep_scale(self, saved: S, found: S) -> S:
        """Choose between a model's scale and that of another reference of the same model."""
        return found

    def check_names(self, names: pd.Index, name: str) -> None:
        """Refuse names that cannot be features of this kind; ``name`` is that of the AnnData."""

    def advice(self, matrix: CellMatrix) -> str:
        """Say where values that can be used may be found, or nothing."""
        return ""

    def describe(self, scale: S) -> str:
        """Say what the matrix holds."""
        return self.values[scale.kind]

    def describe_normalization(self, scale: S) -> str:
        """Say what the matrix holds and what the model makes of it."""
        if scale.kind == "counts":
            return f"{self.describe(scale)}; taken as {self.normalization(scale)}"
        return f"{self.describe(scale)}; used without further normalisation"

    def align(
        self,
        matrix: CellMatrix,
        names: pd.Index,
        scale: S,
        *,
        batch_size: int = 256,
        block_size: int = BLOCK,
        sample: CellMatrix | None = None,
    ) -> AlignedCells:
        """Check a query, and give its cells in batches on the model's features.

        What names alone can tell is checked here, values are checked as they are read. Features
        are matched by name, also with ``-`` for ``_`` and the other way round. If under 95 % of the
        model's genes are found so, the others are looked for under other identifiers, older symbols
        and in columns of ``var``, and the log says what was translated.

        Parameters
        ----------
        matrix
            Matrix of the query, or of its modality of this kind.
        names
            The model's features, in the model's order, ``(n_genes,)``.
        scale
            How the model's reference is scaled.
        batch_size
            Cells in a batch.
        block_size
            Number of cells that are read at a time.
        sample
            If ``matrix`` is a part of a query, cells from all over that query, by which the scale
            is recognized.

        Returns
        -------
        Iterable over batches, in the order of the cells.

        Raises
        ------
        ValueError
            If the query has under half of the model's features, if one of them or a cell's name
            occurs twice; in the iteration, if values are missing, infinite or not those of this
            kind, or counts in some cells and normalized in others.

        Warns
        -----
        UserWarning
            If the query has under 95 % of the model's features; in the iteration, if cells are
            empty or the query seems to be normalized otherwise than the reference.
        """
        name = matrix.name
        whose = "the query" if name == "adata" else name
        check_unique(
            matrix.adata.obs_names, f"obs_names of {whose}", f"{name}.obs_names_make_unique()"
        )
        self.check_names(matrix.names, name)
        indexer = match_names(
            matrix.names,
            names,
            matrix.var,
            name=name,
            features=self.features,
            advice=self.mismatch_advice,
            # Antibodies have names of their own, which may be aliases of genes.
            translate=self.has_gene_sets,
        )
        return AlignedCells(
            self,
            matrix,
            scale,
            indexer,
            len(names),
            # Blocks of whole batches, so that only the last batch is short.
            (batch_size, max(block_size // batch_size, 1) * batch_size),
            sample or matrix,
        )


class AlignedCells(Generic[S]):
    """A query's cells in batches on the model's genes; made by :meth:`ModalityKind.align`.

    ``measured`` says which of the model's genes the query has, ``(n_genes,)``.
    """

    def __init__(
        self,
        kind: ModalityKind[S],
        matrix: CellMatrix,
        scale: S,
        indexer: np.ndarray,
        n_genes: int,
        sizes: tuple[int, int],
        sample: CellMatrix,
    ) -> None:
        self._kind = kind
        self._matrix = matrix
        self._scale = scale
        self._indexer = indexer
        self._batch_size, self._block_size = sizes
        self._sample = sample
        self.measured: np.ndarray = np.zeros(n_genes, dtype=bool)
        self.measured[indexer[indexer >= 0]] = True

    def __iter__(self) -> Iterator[CellBatch]:
        n_empty, step = 0, self._batch_size
        blocks = self._kind.read_query(
            self._matrix,
            self._scale,
            self._indexer >= 0,
            float(self.measured.mean()),
            self._block_size,
            self._sample,
        )
        for block in blocks:
            for offset in range(0, block.values.shape[0], step):
                part = slice(offset, offset + step)
                values = reindex_genes(block.values[part], self._indexer, len(self.measured))
                n_empty += int((~values.any(1)).sum())
                total = None if block.total is None else block.total[part]
                yield CellBatch(block.start + offset, values, block.is_counts, total)
        if n_empty and self._kind.empty_cells is not None:
            warning = EmptyCellsWarning(n_empty, self._kind.empty_cells)
            warnings.warn(warning, stacklevel=user_stacklevel())
