"""Which gene is in which gene set: the mask that gives the model its tokens."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from anndata import AnnData
from mudata import MuData
from scipy.sparse import csr_matrix, issparse, vstack

from tosica import gs
from tosica._logging import logger
from tosica.pp._build_masks import build_masks
from tosica.pp._gene_names import hint_for_mismatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Under this share of the data's genes in a kept set, a user should hear of it.
_LOW_COVERAGE = 0.1
# Species as users call them; others keep their scientific name.
_COMMON_NAMES = {"Homo sapiens": "human", "Mus musculus": "mouse"}
_UNANNOTATED = re.compile(r"unannotated_\d+")


@dataclass(frozen=True)
class _GeneSets:
    """Gene sets laid end to end: ``genes`` holds set 0, then set 1, …, of the given ``lengths``."""

    names: list[str]
    genes: NDArray[np.object_]
    lengths: NDArray[np.intp]
    source: str
    organism: str


def build_mask(
    adata: AnnData | MuData,
    gene_sets: str
    | os.PathLike[str]
    | Mapping[str, Iterable[str]]
    | pd.DataFrame
    | None = "human_gobp",
    *,
    min_genes: int = 5,
    max_genes: int = 300,
    max_gene_sets: int = 300,
    n_unannotated: int = 1,
    mask_ratio: float = 0.015,
    seed: int = 0,
    modalities: Mapping[str, str] | None = None,
    groups: Mapping[str, Any] | None = None,
    key_added: str = "tosica_mask",
    copy: bool = False,
) -> AnnData | MuData | None:
    """Decide which gene sets become the model's tokens, and which genes feed each of them.

    Genes are matched to `adata.var_names` by exact name. Sets are kept if they list at most
    `max_genes` genes, of which at least `min_genes` are in the data; of these the `max_gene_sets`
    with the most genes in the data (of equally large ones the earlier), in the order in which they
    were given. Then come `n_unannotated` columns that hold every gene, so that no gene is lost to
    the model.

    Parameters
    ----------
    adata
        The reference, (n_obs, n_vars). Only its `var_names` are read; X is not touched. Of a MuData
        each modality gets a mask: RNA that of `gene_sets`, any other one token a feature, such as
        an antibody, or `groups`.
    gene_sets
        Where the gene sets come from:

        - name of a collection, see :func:`tosica.gs.collections`;
        - path of a ``.gmt`` or ``.gmt.gz`` file (a collection's name wins over a file so called);
        - dict of name to genes;
        - long table with the columns ``source`` (the set) and ``target`` (the gene), as decoupler's
          networks have; weights are not used, and rows with a missing value are left out;
        - None for random sets: `max_gene_sets` of them, ``random_1``, ``random_2``, …, that
          each hold each gene with probability `mask_ratio`. A set that gets fewer than `min_genes`
          genes is topped up to `min_genes` with genes drawn at random; `max_genes` does not apply.
    min_genes
        Fewest genes of a set that must be in the data.
    max_genes
        Most genes that a set may list, whether they are in the data or not.
    max_gene_sets
        Most gene sets to keep, the fully connected columns not counted.
    n_unannotated
        Number of fully connected columns at the end; may be 0.
    mask_ratio
        Probability, above 0 and up to 1, that a gene is in a random set. Of no effect otherwise.
    seed
        Seed of the random sets, independent of any global state. Of no effect otherwise.
    modalities
        Role to name of a MuData's modalities, as in :meth:`tosica.TOSICA.setup_mudata`. By default
        "rna" and "protein", as far as there are modalities of these names.
    groups
        For a MuData, the name of a modality other than RNA to groups of its features, in any form
        that `gene_sets` has; `min_genes` is then 1. A modality that is not named gets one token a
        feature, and no fully connected column.
    key_added
        Key of `.varm` and `.uns` to write to, of a MuData those of each modality. An older mask
        there is replaced.
    copy
        Return a changed copy and leave `adata` as it is.

    Returns
    -------
    None, or the copy if `copy=True`. Written are, with P the number of gene sets kept and of
    fully connected columns together:

    `adata.varm[key_added]`
        Which gene is in which set, (n_vars, P) sparse bool (:class:`scipy.sparse.csr_matrix`).
    `adata.uns[key_added]`
        A dict:

        - ``gene_sets``: names of the columns, (P,); the last ones are ``unannotated_1``, …
        - ``source``: the collection's name, the file's name, "dict", "table" or "random"
        - ``organism``: the collection's organism, such as "human", else "unknown"
        - ``params``: `min_genes`, `max_genes`, `max_gene_sets`, `n_unannotated`, `mask_ratio` and
          `seed`
        - ``n_unannotated``: number of fully connected columns
        - ``n_genes``: number of genes in the data
        - ``n_genes_covered``: how many of them are in a gene set (fully connected columns aside)
        - ``coverage``: the share, 0 to 1, that these are

    Nothing else changes. A view becomes an actual AnnData with anndata's usual
    :class:`~anndata.ImplicitModificationWarning`, and its parent stays as it was. To a backed
    AnnData the mask is added in memory only; its file changes when it is written. (anndata copies
    neither it nor a view of it in memory: call `.to_memory()` before `copy=True`, or before
    passing the view.)

    Raises
    ------
    TypeError
        `adata` is no AnnData or MuData, `gene_sets` none of the above, a set's genes are one string
        instead of a list, a name is no string, or a parameter is no number.
    ValueError
        No cells or genes, duplicated `var_names`, a parameter out of range, a table without the
        two columns, nothing in `gene_sets`, a set called ``unannotated_<number>``, no set left
        (with the likely reason, such as Ensembl IDs for symbols or another species), a
        `key_added` under which something else is stored, no such collection
        (:func:`tosica.gs.load`), or a file that is not GMT (:func:`tosica.gs.read_gmt`).
    KeyError
        `modalities` or `groups` name what a MuData does not have.
    FileNotFoundError, IsADirectoryError
        No such file, or a folder (:func:`tosica.gs.read_gmt`).

    Warns
    -----
    UserWarning
        Under 10 % of the data's genes are in a gene set that was kept.

    Notes
    -----
    The selection is that of Chen et al., Nat. Commun. 14, 223 (2023). The authors' code differs in
    two details: it counts the fully connected column among the 300, and leaves open which of
    equally large sets stay.

    Examples
    --------
    >>> import numpy as np
    >>> from anndata import AnnData
    >>> import tosica
    >>> adata = AnnData(np.ones((2, 5), dtype=np.float32))
    >>> adata.var_names = ["CD3D", "CD3E", "CD19", "MS4A1", "LYZ"]
    >>> gene_sets = {"T cell": ["CD3D", "CD3E", "CD2"], "B cell": ["CD19", "MS4A1"]}
    >>> tosica.pp.build_mask(adata, gene_sets, min_genes=2)
    >>> adata.uns["tosica_mask"]["gene_sets"].tolist()
    ['T cell', 'B cell', 'unannotated_1']
    >>> adata.varm["tosica_mask"].toarray().astype(int)
    array([[1, 0, 1],
           [1, 0, 1],
           [0, 1, 1],
           [0, 1, 1],
           [0, 0, 1]])
    >>> adata.uns["tosica_mask"]["coverage"]
    0.8
    """
    if isinstance(adata, MuData):
        arguments = locals()
        return build_masks(build_mask, arguments.pop("adata"), **arguments)
    if modalities is not None or groups is not None:
        raise TypeError("modalities and groups are for a MuData, and adata is an AnnData.")
    _check_adata(adata)
    _check_key(adata, key_added)
    params = _check_params(
        min_genes=min_genes,
        max_genes=max_genes,
        max_gene_sets=max_gene_sets,
        n_unannotated=n_unannotated,
        mask_ratio=mask_ratio,
        seed=seed,
    )

    if gene_sets is None:
        names, members = _draw(
            adata.n_vars,
            n_sets=max_gene_sets,
            min_genes=min_genes,
            mask_ratio=mask_ratio,
            seed=seed,
        )
        source, organism, n_given = "random", "unknown", len(names)
    else:
        given = _read(gene_sets)
        members = _match(given, adata.var_names)
        sizes = np.diff(members.indptr)
        fits = np.flatnonzero((sizes >= min_genes) & (given.lengths <= max_genes))
        if fits.size == 0:
            raise ValueError(_nothing_left(adata, given, sizes, min_genes, max_genes))
        kept = fits[_largest(sizes[fits], max_gene_sets)]
        names, members = [given.names[i] for i in kept], members[kept]
        source, organism, n_given = given.source, given.organism, len(given.names)

    sizes = np.diff(members.indptr)
    n_covered = int(np.count_nonzero(np.bincount(members.indices, minlength=adata.n_vars)))
    coverage = n_covered / adata.n_vars
    if coverage < _LOW_COVERAGE:
        # Names that fit neither by kind nor by species let a few sets through by chance.
        if gene_sets is None:
            advice = "raise mask_ratio or max_gene_sets"
        else:
            advice = _hint(adata, given) or "pass gene sets that hold more of them"
        rest = "only the fully connected tokens" if n_unannotated else "nothing in the model"
        warnings.warn(
            f"only {100 * coverage:.2g} % of adata's genes ({_count(n_covered)} of "
            f"{_count(adata.n_vars)}) are in a gene set that was kept, so that {rest} will see the "
            f"others; {advice}.",
            UserWarning,
            stacklevel=2,
        )

    result = adata.copy() if copy else adata
    result.varm[key_added] = _assemble(members, n_unannotated)
    result.uns[key_added] = {
        "gene_sets": np.array(
            [*names, *(f"unannotated_{i + 1}" for i in range(n_unannotated))], dtype=object
        ),
        "source": source,
        "organism": organism,
        "params": params,
        "n_unannotated": params["n_unannotated"],
        "n_genes": adata.n_vars,
        "n_genes_covered": n_covered,
        "coverage": coverage,
    }
    logger.info(
        "build_mask: kept %s of %s gene sets (%s–%s genes each), covering %s of %s genes "
        "(%.1f %%); added .varm[%r] and .uns[%r]",
        _count(len(names)),
        _count(n_given),
        _count(sizes.min()),
        _count(sizes.max()),
        _count(n_covered),
        _count(adata.n_vars),
        100 * coverage,
        key_added,
        key_added,
    )
    return result if copy else None


def _largest(sizes: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    """Positions of the `n` largest sizes, in the given order; of equal sizes the earlier."""
    by_size = np.argsort(-sizes, kind="stable")
    return np.sort(by_size[:n])


def _match(given: _GeneSets, var_names: pd.Index) -> csr_matrix:
    """Find the sets' genes among the data's: (sets, n_vars) bool, each gene once a set."""
    positions = var_names.get_indexer(pd.Index(given.genes, dtype=object))
    found = positions >= 0
    n_found_before = np.concatenate([[0], np.cumsum(found)])
    set_ends = np.concatenate([[0], np.cumsum(given.lengths)])
    members = csr_matrix(
        (np.ones(n_found_before[-1], dtype=bool), positions[found], n_found_before[set_ends]),
        shape=(len(given.names), len(var_names)),
    )
    members.sum_duplicates()
    return members


def _draw(
    n_vars: int, *, n_sets: int, min_genes: int, mask_ratio: float, seed: int
) -> tuple[list[str], csr_matrix]:
    """Random gene sets, (n_sets, n_vars) bool, none below `min_genes`."""
    if n_vars < min_genes:
        raise ValueError(
            f"a random gene set cannot hold min_genes={min_genes} genes because adata has only "
            f"{n_vars}: lower min_genes or pass an adata with more genes."
        )
    rng = np.random.default_rng(seed)
    genes = []
    for _ in range(n_sets):
        inside = rng.random(n_vars) < mask_ratio
        n_missing = min_genes - int(inside.sum())
        if n_missing > 0:
            inside[rng.choice(np.flatnonzero(~inside), size=n_missing, replace=False)] = True
        genes.append(np.flatnonzero(inside))
    indptr = np.concatenate([[0], np.cumsum([g.size for g in genes])])
    members = csr_matrix(
        (np.ones(indptr[-1], dtype=bool), np.concatenate(genes), indptr), shape=(n_sets, n_vars)
    )
    return [f"random_{i + 1}" for i in range(n_sets)], members


def _assemble(members: csr_matrix, n_unannotated: int) -> csr_matrix:
    """The mask, (n_vars, P), with its fully connected columns last."""
    full = csr_matrix(np.ones((n_unannotated, members.shape[1]), dtype=bool))
    mask = vstack([members, full]).T.tocsr()
    mask.sort_indices()
    return mask


# --------------------------------------------------------------------------- reading gene sets


def _read(
    gene_sets: str | os.PathLike[str] | Mapping[str, Iterable[str]] | pd.DataFrame,
) -> _GeneSets:
    """Bring every form in which gene sets come into one."""
    organism = "unknown"
    if isinstance(gene_sets, str) and not _is_path(gene_sets):
        source = gene_sets
        # First, because it says which collections there are if this is none.
        names, genes, lengths = _flatten(gs.load(source))
        species = str(gs.collections().at[source, "organism"])
        organism = _COMMON_NAMES.get(species, species)
    elif isinstance(gene_sets, str | os.PathLike):
        source = Path(gene_sets).name
        names, genes, lengths = _flatten(gs.read_gmt(gene_sets))
    elif isinstance(gene_sets, pd.DataFrame):
        source = "table"
        names, genes, lengths = _flatten_table(gene_sets)
    elif isinstance(gene_sets, Mapping):
        source = "dict"
        names, genes, lengths = _flatten(gene_sets)
    else:
        raise TypeError(
            "gene_sets must be a collection's name, a path of a GMT file, a dict of lists, a table "
            f"with 'source' and 'target' columns or None, not {type(gene_sets).__name__}."
        )
    _check_names(names, genes, lengths, source)
    return _GeneSets(names, genes, lengths, source, organism)


def _is_path(gene_sets: str) -> bool:
    """Whether a string is a file's; a collection's name stays one whatever lies in the folder."""
    if gene_sets.lower().endswith((".gmt", ".gmt.gz")):
        return True
    return os.path.isfile(gene_sets) and gene_sets not in gs.collections().index


def _flatten(
    gene_sets: Mapping[str, Iterable[str]],
) -> tuple[list[str], NDArray[np.object_], NDArray[np.intp]]:
    lists = []
    for name, genes in gene_sets.items():
        if isinstance(genes, str | bytes) or not isinstance(genes, Iterable):
            raise TypeError(
                f"the genes of gene set {name!r} must be a list of names, not "
                f"{type(genes).__name__} ({genes!r:.40}): write {{{name!r}: ['CD3D', 'CD3E']}}."
            )
        lists.append(list(dict.fromkeys(genes)))
    lengths = np.array([len(genes) for genes in lists], dtype=np.intp)
    flat = np.empty(int(lengths.sum()), dtype=object)
    flat[:] = list(chain.from_iterable(lists))
    return list(gene_sets), flat, lengths


def _flatten_table(
    table: pd.DataFrame,
) -> tuple[list[str], NDArray[np.object_], NDArray[np.intp]]:
    missing = [column for column in ("source", "target") if column not in table.columns]
    if missing:
        raise ValueError(
            f"the table of gene sets has no column {' and no column '.join(map(repr, missing))}: "
            "it needs 'source' (the gene set) and 'target' (the gene), but its columns are "
            f"{', '.join(map(str, table.columns)) or 'none'}."
        )
    complete = table[["source", "target"]].dropna()
    n_dropped = len(table) - len(complete)
    complete = complete.drop_duplicates()
    if n_dropped:
        logger.warning(
            "build_mask: left out %s of %s rows of the table, whose source or target is missing",
            _count(n_dropped),
            _count(len(table)),
        )
    codes, names = pd.factorize(complete["source"].to_numpy(dtype=object))
    # Sets in the order in which they first appear, each one's genes together.
    order = np.argsort(codes, kind="stable")
    genes = complete["target"].to_numpy(dtype=object)[order]
    return list(names), genes, np.bincount(codes, minlength=len(names))


def _check_names(
    names: list[str], genes: NDArray[np.object_], lengths: NDArray[np.intp], source: str
) -> None:
    """Refuse what cannot be gene sets, whatever form it came in."""
    if not names:
        raise ValueError(f"there is no gene set in gene_sets ({source}): pass at least one.")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"the name of a gene set must be a string, not {type(name).__name__} ({name!r}): "
                "rename it."
            )
        if _UNANNOTATED.fullmatch(name):
            raise ValueError(
                f"gene set {name!r} is called like a fully connected token: rename it."
            )
    # Types first, of which there are few: a look at every gene is for the message alone.
    if not all(issubclass(kind, str) for kind in set(map(type, genes))):
        at = next(i for i, gene in enumerate(genes) if not isinstance(gene, str))
        owner = names[int(np.searchsorted(np.cumsum(lengths), at, side="right"))]
        raise TypeError(
            f"gene set {owner!r} holds a {type(genes[at]).__name__} ({genes[at]!r}) where the name "
            "of a gene is expected: gene names are strings."
        )
    if genes.size == 0:
        raise ValueError(f"no gene set in gene_sets ({source}) holds a gene: pass sets with genes.")


# --------------------------------------------------------------------------- checks and messages


def _check_adata(adata: AnnData) -> None:
    if not isinstance(adata, AnnData):
        raise TypeError(f"adata must be an AnnData, not {type(adata).__name__}.")
    if adata.n_obs == 0 or adata.n_vars == 0:
        what = "cells" if adata.n_obs == 0 else "genes"
        raise ValueError(
            f"adata has no {what} (shape {adata.n_obs} × {adata.n_vars}): "
            "check the filters that came before."
        )
    if not adata.var_names.is_unique:
        repeated = adata.var_names[adata.var_names.duplicated()].unique()
        examples = " and ".join(map(repr, repeated[:2]))
        raise ValueError(
            f"adata.var_names has {_count(len(repeated))} duplicated "
            f"{'name' if len(repeated) == 1 else 'names'} (such as {examples}): "
            "call adata.var_names_make_unique() first."
        )


def _check_key(adata: AnnData, key_added: str) -> None:
    """Refuse to write over anything but an older mask, such as the loadings of a PCA."""
    if not isinstance(key_added, str) or not key_added:
        raise TypeError(f"key_added must be a string that is not empty, not {key_added!r}.")
    taken = []
    if key_added in adata.varm:
        stored = adata.varm[key_added]
        if not (issparse(stored) or isinstance(stored, np.ndarray)) or stored.dtype != bool:
            taken.append(f".varm[{key_added!r}]")
    if key_added in adata.uns:
        stored = adata.uns[key_added]
        if not (isinstance(stored, Mapping) and "gene_sets" in stored):
            taken.append(f".uns[{key_added!r}]")
    if taken:
        raise ValueError(
            f"adata has {' and '.join(taken)} already, which build_mask did not write: "
            "choose another key_added."
        )


def _check_params(
    *,
    min_genes: int,
    max_genes: int,
    max_gene_sets: int,
    n_unannotated: int,
    mask_ratio: float,
    seed: int,
) -> dict[str, Any]:
    """Plain Python numbers of the parameters, or the sentence that says what is wrong."""
    lowest = {
        "min_genes": (min_genes, 1),
        "max_genes": (max_genes, 1),
        "max_gene_sets": (max_gene_sets, 1),
        "n_unannotated": (n_unannotated, 0),
        "seed": (seed, 0),
    }
    for name, (value, least) in lowest.items():
        if not isinstance(value, Integral):
            raise TypeError(f"{name} must be a whole number, not {value!r}.")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}.")
    if max_genes < min_genes:
        raise ValueError(f"max_genes ({max_genes}) must not be below min_genes ({min_genes}).")
    if not isinstance(mask_ratio, Real):
        raise TypeError(f"mask_ratio must be a number, not {mask_ratio!r}.")
    if not (math.isfinite(mask_ratio) and 0 < mask_ratio <= 1):
        raise ValueError(f"mask_ratio must be above 0 and at most 1, not {mask_ratio}.")
    numbers: dict[str, Any] = {name: int(value) for name, (value, _) in lowest.items()}
    return {**numbers, "mask_ratio": float(mask_ratio)}


def _nothing_left(
    adata: AnnData, given: _GeneSets, sizes: NDArray[np.intp], min_genes: int, max_genes: int
) -> str:
    """Why no gene set was kept, in one sentence."""
    n_sets = _count(len(given.names))
    if sizes.max() == 0:
        found = (
            f"no gene of {n_sets} gene sets ({given.source}) is among adata.var_names "
            f"({str(adata.var_names[0])!r} in adata, {given.genes[0]!r} in the gene sets)"
        )
        fallback = "pass gene sets with the names that adata uses"
        return f"{found}: {_hint(adata, given) or fallback}."
    found = (
        f"none of {n_sets} gene sets ({given.source}) lists at most {max_genes} genes and has "
        f"at least {min_genes} of them in adata (they list {given.lengths.min()} to "
        f"{given.lengths.max()} and have {sizes.min()} to {sizes.max()})"
    )
    if sizes.max() >= min_genes:
        # Some are large enough: the names match and the limits are at fault.
        return f"{found}: lower min_genes or raise max_genes."
    return f"{found}: {_hint(adata, given) or 'lower min_genes or pass other gene sets'}."


def _hint(adata: AnnData, given: _GeneSets) -> str:
    return hint_for_mismatch(
        adata.var_names, given.genes, query="adata", reference="the gene sets'", var=adata.var
    )


def _count(number: int) -> str:
    """A number with its thousands set apart: 2 310."""
    return f"{number:,}".replace(",", " ")
