"""Join references of several studies: their labels, genes, depths and batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._obs import read_groups
from tosica._settings import logger, warn_user
from tosica._text import format_thousands, list_names, only_known
from tosica._validate import InstanceOf, Integer, validate_params
from tosica.data import (
    BLOCK,
    CellMatrix,
    check_unique,
    checked_blocks,
    detect,
    find_genes,
)
from tosica.gs._gene_list import GeneList
from tosica.io._matrices import recover_counts
from tosica.pp._impute_genes import find_relatives, impute_genes
from tosica.pp._join_labels import JOINED_TERM, join_labels
from tosica.pp._study_share import study_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData

    from tosica._types import ObjectArray

# Share of a cell's values that are multiples of its smallest one, in a logarithm of counts.
_SHARE_WHOLE = 0.9


@dataclass
class _Reference:
    """Counts of one reference, with joined labels; ``labels`` and ``batches`` have a value a cell."""

    name: str
    counts: sp.csr_matrix
    genes: pd.Index
    labels: ObjectArray
    batches: ObjectArray
    cell_names: pd.Index


@validate_params(
    references=InstanceOf("a dict of name to AnnData", Mapping),
    labels_key=InstanceOf("a column of obs, or a dict of name to column", str, Mapping),
    mapping=InstanceOf(
        "a dict of label to joined label, or a dict of name to such dicts",
        Mapping,
        optional=True,
    ),
    lenders=InstanceOf("a dict of label to similar label", Mapping, optional=True),
    seed=Integer(least=0),
)
def join_references(
    references: Mapping[str, AnnData],
    labels_key: str | Mapping[str, str],
    *,
    mapping: Mapping[str, str | Mapping[str, str]] | None = None,
    batch_key: str | None = None,
    impute: bool = True,
    lenders: Mapping[str, str] | None = None,
    seed: int = 0,
) -> AnnData:
    """Join references of several studies into one.

    Labels with the same term of the Cell Ontology become one. A gene is taken if for each label a
    reference measured it that has cells of the type, or of one above or below it. Cells whose
    reference lacks the gene borrow it (hot deck): each takes one of its ten nearest cells of the type
    in the other reference by what both measured, beside the means of the type in their references,
    and Poisson counts of its expression at the cell's own depth.

    Parameters
    ----------
    references
        Names and cells: counts, or the natural logarithm of normalized counts, which is undone. Genes are
        matched by their names, then by other identifiers and older symbols, and have the name of the
        first reference, or of the first with symbols.
    labels_key
        Column of ``obs`` with the labels, or one for each name. Terms are read from
        ``f"{labels_key}_ontology_term_id"`` if it is there, and else found by
        :func:`tosica.onto.map_labels`.
    mapping
        Label to joined label, or to a term such as ``"CL:0000084"``; under the name of a reference, a dict
        of these for its own labels.
        Cells of a label that becomes ``""`` are left out.
    batch_key
        Column of ``obs`` with the batches, such as donors. A reference without it is one batch.
    impute
        Draw the genes that a reference lacks. With ``False``, the genes are those that all references
        measured.
    lenders
        Joined label to a similar one whose cells lend it the genes that no reference with the label
        measured, so that nothing tells the two apart by these genes.
    seed
        Seed of what is drawn.

    Returns
    -------
    AnnData
        ``(n_cells, n_genes)``:

        ``.X``
            Counts, :class:`scipy.sparse.csr_matrix` of float32.
        ``.obs``
            ``cell_type``, ``cell_type_ontology_term_id`` (``"unknown"`` without a term), ``reference``
            (the name) and ``batch``, which tells batches of different references apart; all categorical.
        ``.var``
            ``n_measured``, the number of references that measured the gene, and ``study_share``, from 0 to
            1: how much of the variance of its mean over types and references is due to references. On
            average, models of the genes below a third are more accurate in another study.
        ``.uns["join_references"]``
            ``labels``: table of ``reference``, ``label``, ``cell_type``,
            ``cell_type_ontology_term_id`` and ``n_cells``.

    Raises
    ------
    KeyError
        If a column is missing, or ``mapping`` names a reference or a label that is not there.
    TypeError
        If an argument is of the wrong type.
    ValueError
        If there are fewer than two references, they are of two species, one has a gene or a cell's name
        twice or no labeled cell, a label has two terms, ``mapping`` a term that cells may not have, they
        have no gene or no label in common, one shares fewer genes with any other than it has labels,
        expression is neither counts nor the logarithm of counts, or ``lenders`` names a label that is
        not there.

    Warns
    -----
    UserWarning
        If genes are left out because no reference with a label measured them.

    Examples
    --------
    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> cells = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> cells.X = np.expm1(cells.X).ceil()
    >>> joined = tosica.pp.join_references(
    ...     {"one": cells[::2].copy(), "two": cells[1::2].copy()}, "bulk_labels"
    ... )
    >>> joined.obs["batch"].cat.categories.tolist()
    ['one', 'two']
    """
    _check_references(references)
    keys = {}
    for name, adata in references.items():
        key = labels_key if isinstance(labels_key, str) else labels_key.get(name, "")
        if key not in adata.obs:
            raise KeyError(
                f"references[{name!r}].obs has no column {key!r} for labels_key{only_known(key, adata.obs)}"
            )
        keys[name] = key
    if batch_key is not None:
        _check_batches(references, batch_key)
    labels = join_labels(references, keys, mapping or {})
    members = [
        _read(name, adata, keys[name], labels, batch_key)
        for name, adata in references.items()
    ]
    for reference in members:
        rows = labels[labels["reference"] == reference.name].set_index("label")
        reference.labels = rows["cell_type"].reindex(reference.labels).to_numpy()
    _name_genes_alike(members)
    term_of = dict(zip(labels["cell_type"], labels[JOINED_TERM], strict=True))
    _check_lenders(lenders or {}, term_of)
    joined = _join(members, term_of, lenders or {}, impute=impute, seed=seed)
    joined.uns["join_references"] = {"labels": labels}
    return joined


def _check_references(references: Mapping[str, AnnData]) -> None:
    """Refuse a single reference, other objects, genes named twice, and references of two species."""
    if len(references) < 2:
        raise ValueError(f"references must have two or more, not {len(references)}.")
    organisms: dict[str, str] = {}
    for name, adata in references.items():
        if not isinstance(name, str):
            raise TypeError(f"references must have strings as names, not {name!r}.")
        if not isinstance(adata, ad.AnnData):
            raise TypeError(
                f"references must hold AnnData objects, not {type(adata).__name__} for {name!r}."
            )
        where = f"references[{name!r}]"
        for axis in ("obs_names", "var_names"):
            remedy = f"{where}.{axis}_make_unique()"
            check_unique(getattr(adata, axis), f"{axis} of {where}", remedy)
        organism = GeneList(adata.var_names).organism
        if organism is not None:
            organisms.setdefault(organism, name)
    if len(organisms) > 1:
        (organism, name), (second_organism, second_name) = organisms.items()
        raise ValueError(
            f"{name!r} has genes of {organism}, and {second_name!r} of {second_organism}: translate one of them "
            f"by tosica.gs.map_genes(adata.var_names, to_organism={organism!r})."
        )


# --------------------------------------------------------------------------- labels


def _check_batches(references: Mapping[str, AnnData], batch_key: str) -> None:
    """Refuse a column of batches that no reference has."""
    columns = {column for adata in references.values() for column in adata.obs}
    if batch_key not in columns:
        raise KeyError(
            f"No reference has a column {batch_key!r} in obs{only_known(batch_key, columns)}"
        )


def _check_lenders(lenders: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """Refuse labels that are not among the joined ones."""
    for label in [*lenders, *lenders.values()]:
        if label not in labels:
            raise ValueError(
                f"lenders: no reference has the label {label!r}{only_known(label, labels)}"
            )


# --------------------------------------------------------------------------- counts and genes


def _read(
    name: str, adata: AnnData, key: str, labels: pd.DataFrame, batch_key: str | None
) -> _Reference:
    """Read the counts of the labeled cells of a reference."""
    groups = read_groups(adata, key, name="labels_key", allow_missing=True)
    of_cells = np.array([*groups.categories, ""], dtype=object)[groups.codes]
    of_reference = labels[labels["reference"] == name]
    is_labeled = np.isin(of_cells, of_reference["label"].to_numpy())
    batches = np.full(adata.n_obs, name, dtype=object)
    if batch_key is not None and batch_key in adata.obs:
        column = adata.obs[batch_key]
        is_known = column.notna().to_numpy()
        batches[is_known] = [f"{name}/{batch}" for batch in column[is_known]]
    return _Reference(
        name,
        _counts(name, adata)[is_labeled],
        adata.var_names.astype(str),
        of_cells[is_labeled],
        batches[is_labeled],
        name + "_" + adata.obs_names[is_labeled].astype(str),
    )


def _counts(name: str, adata: AnnData) -> sp.csr_matrix:
    """Read counts, or undo a logarithm: by totals in ``obs``, or by the smallest value, one count."""
    matrix = CellMatrix(adata, name=f"references[{name!r}]")
    detected = detect(matrix)
    blocks = [
        sp.csr_matrix(block, dtype=np.float32)
        for _, block in checked_blocks(matrix, detected, BLOCK)
    ]
    values = sp.vstack(blocks, format="csr")
    if detected.kind == "counts":
        return values
    values.eliminate_zeros()
    counts, _ = recover_counts(values, adata.obs)
    if counts is not None:
        return counts.astype(np.float32)
    np.expm1(values.data, out=values.data)
    sizes = np.diff(values.indptr)
    is_filled = sizes > 0
    smallest = np.ones(values.shape[0], dtype=np.float32)
    smallest[is_filled] = np.minimum.reduceat(
        values.data, values.indptr[:-1][is_filled]
    )
    multiples = values.data / np.repeat(smallest, sizes)
    values.data = np.rint(multiples)
    if np.mean(np.abs(multiples - values.data) < 0.1) < _SHARE_WHOLE:
        raise ValueError(
            f"references[{name!r}] holds logarithms that no counts can be found in: pass its counts."
        )
    return values


def _name_genes_alike(references: Sequence[_Reference]) -> None:
    """Give a gene one name in all references: that of the first, or of the first with symbols."""
    kinds = [GeneList(reference.genes).kind or "" for reference in references]
    has_symbols = [kind.endswith("symbols") for kind in kinds]
    if len(set(kinds)) > 1:
        for reference, has_names in zip(references, has_symbols, strict=True):
            if not has_names:
                _translate_to_symbols(reference)
    ordered = [
        references[i] for i in np.argsort(np.logical_not(has_symbols), kind="stable")
    ]
    known = ordered[0].genes
    for reference in ordered[1:]:
        positions = find_genes(
            reference.genes, known, lambda: None, sufficient_share=np.inf
        ).indexer
        is_known = positions >= 0
        names = np.asarray(reference.genes, dtype=object)
        names[is_known] = known[positions[is_known]]
        known = known.append(reference.genes[~is_known])
        reference.genes = pd.Index(names)


def _translate_to_symbols(reference: _Reference) -> None:
    """Replace the names of genes by symbols, and leave out genes that two other names stand for."""
    genes = GeneList(reference.genes)
    if genes.organism is None:
        return
    symbols = pd.Series(genes.resolve(genes.organism).genes, dtype=object)
    own_names = pd.Series(np.asarray(reference.genes, dtype=object))
    # A gene that is there by its own name has this name, and an alias of it is another gene.
    is_translated = symbols.notna() & ~symbols.isin(own_names)
    names = own_names.mask(is_translated, symbols)
    is_unique = (~names.duplicated(keep=False)).to_numpy()
    reference.counts = reference.counts[:, is_unique]
    reference.genes = pd.Index(names[is_unique].astype(str))


def _join(
    references: Sequence[_Reference],
    term_of: Mapping[str, str],
    lenders: Mapping[str, str],
    *,
    impute: bool,
    seed: int,
) -> AnnData:
    """Put the cells together on the genes that each of them has or can borrow."""
    relatives = find_relatives(term_of)
    genes = (
        _choose_genes(references, relatives, lenders)
        if impute
        else _common_genes(references)
    )
    # With all their genes: cells are compared on those that two references share.
    studies = [_to_anndata(reference) for reference in references]
    pieces = []
    for reference, study in zip(references, studies, strict=True):
        if not genes.isin(study.var_names).all():
            others = [
                other_study
                for other, other_study in zip(references, studies, strict=True)
                if other is not reference and _are_comparable(reference, other)
            ]
            study = impute_genes(study, others, genes, relatives, lenders, seed)
        pieces.append(study[:, genes])
    joined = ad.concat(pieces)
    joined.X = sp.csr_matrix(joined.X, dtype=np.float32)
    joined.obs[JOINED_TERM] = joined.obs["cell_type"].map(term_of)
    joined.obs = joined.obs[["cell_type", JOINED_TERM, "reference", "batch"]].astype(
        "category"
    )
    joined.var["n_measured"] = sum(genes.isin(study.var_names) for study in studies)
    joined.var["study_share"] = study_share(joined)
    n_imputed = int((joined.var["n_measured"] < len(references)).sum())
    logger.info(
        "join_references: %s cells of %d references, %d labels and %s genes; %s of these were not measured by all",
        format_thousands(joined.n_obs),
        len(references),
        joined.obs["cell_type"].nunique(),
        format_thousands(joined.n_vars),
        format_thousands(n_imputed),
    )
    return joined


def _choose_genes(
    references: Sequence[_Reference],
    relatives: Mapping[str, set[str]],
    lenders: Mapping[str, str],
) -> pd.Index:
    """Find the genes that for each label a reference measured which can lend them, in alphabetical order.

    Genes that a reference lacks are drawn from cells of the same type only. Without any, cells would
    get genes of other types.
    """
    all_genes = references[0].genes
    for reference in references[1:]:
        all_genes = all_genes.union(reference.genes)
    _check_overlaps(references, len(all_genes))
    is_measured = np.array([all_genes.isin(other.genes) for other in references])
    n_lost: dict[str, int] = {}
    is_chosen = np.ones(len(all_genes), dtype=bool)
    for reference in references:
        for label in pd.unique(reference.labels):
            lending = relatives[label] | {lenders.get(label, label)}
            lends = [
                other is reference
                or (
                    _are_comparable(reference, other)
                    and not lending.isdisjoint(other.labels)
                )
                for other in references
            ]
            has_lender = is_measured[lends].any(0)
            is_chosen &= has_lender
            n_lost[label] = max(n_lost.get(label, 0), int((~has_lender).sum()))
    limiting = sorted(filter(n_lost.get, n_lost), key=lambda label: -n_lost[label])
    if limiting:
        warn_user(
            f"Of {format_thousands(len(all_genes))} genes {format_thousands(int(is_chosen.sum()))} are taken: the "
            f"references with {list_names(limiting, 5)} did not measure the others. To take more, leave these "
            'cells out by mapping={label: ""}, or name labels that lend them genes by lenders={label: '
            "similar label}."
        )
    return all_genes[is_chosen].sort_values()


def _common_genes(references: Sequence[_Reference]) -> pd.Index:
    """Find the genes that all references measured, in alphabetical order."""
    genes = references[0].genes
    for reference in references[1:]:
        genes = genes.intersection(reference.genes)
        if genes.empty:
            _refuse_no_common_gene(reference)
    return genes.sort_values()


def _refuse_no_common_gene(reference: _Reference) -> NoReturn:
    """Say that a reference cannot be joined, with some of its genes."""
    raise ValueError(
        f"{reference.name!r} has no gene in common with the other references, such as "
        f"{list_names(list(reference.genes[:3]))} there."
    )


def _n_shared(reference: _Reference, other: _Reference) -> int:
    """Count the genes that two references measured."""
    return len(reference.genes.intersection(other.genes))


def _are_comparable(reference: _Reference, other: _Reference) -> bool:
    """Whether two references share a gene or more for each label of the first one."""
    return _n_shared(reference, other) >= len(set(reference.labels))


def _check_overlaps(references: Sequence[_Reference], n_genes: int) -> None:
    """Refuse to draw genes for a reference that no other one can be compared with."""
    for reference in references:
        n_shared = max(
            _n_shared(reference, other)
            for other in references
            if other is not reference
        )
        if n_shared == 0:
            _refuse_no_common_gene(reference)
        n_labels = len(set(reference.labels))
        if n_shared < n_labels and len(reference.genes) < n_genes:
            raise ValueError(
                f"{reference.name!r} has {format_thousands(len(reference.genes))} genes and shares {n_shared} with "
                f"another reference, too few to draw others for its {n_labels} labels: leave it out, or pass "
                "impute=False."
            )


def _to_anndata(reference: _Reference) -> AnnData:
    """Put counts and labels of a reference together."""
    obs = pd.DataFrame(
        {
            "cell_type": reference.labels,
            "reference": reference.name,
            "batch": reference.batches,
        },
        index=reference.cell_names,
    )
    return ad.AnnData(
        reference.counts, obs=obs, var=pd.DataFrame(index=reference.genes)
    )
