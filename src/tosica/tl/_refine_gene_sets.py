"""Gene sets refined by co-expression: genes that join them, and genes that leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tosica._logging import logger
from tosica._progress import progress
from tosica._validation import check_count, check_fraction, check_number, check_path
from tosica.data import CellMatrix
from tosica.gs import write_gmt
from tosica.linear import read_normalized, subsample_by_label
from tosica.model._check_model import check_model
from tosica.model._check_reference import check_genes
from tosica.model._fields import MaskField
from tosica.model._modalities import is_joint
from tosica.module import REGISTRY_KEYS
from tosica.tl._gene_set_membership import (
    Refinement,
    bootstrap,
    describe_genes,
    held_out_scores,
    refine,
)

if TYPE_CHECKING:
    import os

    import scipy.sparse as sp
    from numpy.typing import NDArray

    from tosica.model import TOSICA

_COLUMNS = ["gene_set", "gene", "change", "evidence", "stability", "recall"]
# Correlations hardly change with more cells.
_MAX_CELLS = 2_000


def refine_gene_sets(
    model: TOSICA,
    path: str | os.PathLike[str] | None = None,
    *,
    price: float = 2.5,
    min_recall: float = 0.5,
    min_stability: float = 0.5,
    n_bootstraps: int = 10,
    random_state: int = 0,
) -> pd.DataFrame:
    """Refine a model's gene sets by co-expression in its reference.

    A gene outside of a set joins it if it is as co-expressed with the set as the set's own genes
    are, and a gene of the set leaves if it is no more co-expressed than others. A set is refined
    only if the reference has evidence about it, that is, if most of its own genes are found when
    they are held out. This holds for few sets, such as those of ribosomal proteins or of antigen
    presentation; the others stay as they are.

    Parameters
    ----------
    model
        A model with its reference. It need not be trained, and is not changed. Gene sets are
        refined, modules are not.
    path
        GMT file for the model's gene sets, refined or not, which
        :func:`tosica.pp.build_mask` reads. It is gzip-compressed if its name ends in ``.gz``. An
        existing file is replaced. It holds the genes of the reference, under their names there.
    price
        Price of joining: for each gene that joins, so many of the set's own genes must be found
        at its score or above. With a higher price, fewer genes join, and more of them are right. A
        gene leaves a set if scores that low are so many times as frequent outside of the set.
    min_recall
        Share of its own genes that must be found at this price for a set to be refined.
    min_stability
        Share of the bootstraps in which a change must be repeated.
    n_bootstraps
        Number of bootstraps of the reference's cells, within labels.
    random_state
        Seed of the bootstraps.

    Returns
    -------
    One row a change, gene sets in the order of the model, with the columns:

    ``gene_set``, ``gene``
        Names of the gene set and the gene.
    ``change``
        ``"gained"`` or ``"lost"``.
    ``evidence``
        Score of the gene, 0 for the mean of genes outside of the set and 1 for the mean of its
        own genes. Scores of its own genes are held out.
    ``stability``
        Share of the bootstraps with the same change, 0 to 1.
    ``recall``
        Share of the set's own genes that are found.

    ``attrs["refined"]`` of the table names the gene sets that the reference has evidence about,
    also those that did not change.

    Raises
    ------
    FileNotFoundError
        If the folder of ``path`` does not exist.
    OSError
        If the file cannot be written.
    TypeError
        If an argument is of the wrong type.
    ValueError
        If the model has no reference, or is a model of a MuData or of the original code, if genes
        of the reference have changed since it was set up, or if a parameter is out of range.

    See Also
    --------
    tosica.gs.write_gmt : write gene sets to a GMT file.
    tosica.pp.build_mask : build the mask of a new model from this file.

    Notes
    -----
    At most 2 000 cells of the reference are read. Two scores are added for each gene and gene set.
    One is the mean correlation of the gene with the set's genes. The other is the prediction of
    membership by a ridge regression on the gene's loadings, from principal components of expression
    and of its deviations from the mean of each label. Neither uses the gene's own membership
    (leave-one-out), so that the set's own genes can be compared with others. Memberships in other
    gene sets are not used.

    If a set lacks one gene for every four that it has, and these are as co-expressed as those,
    about ``price / 4`` of the genes that join are right, which is 0.62 by default. Of a set of
    random genes, next to none are found, and no gene joins.

    expiMap :cite:p:`Lotfollahi2023` lets genes join a set at the price of an L1 penalty on their
    weights in a decoder. Spectra :cite:p:`Kunes2024` fits factors that may deviate from gene sets,
    which are given as a graph of genes. Both train a model of expression for this. In the latent
    group lasso :cite:p:`Jacob2009`, by which tokens are chosen, genes cannot join a set.

    References
    ----------
    Lotfollahi et al., *Biologically informed deep learning to query gene programs in single-cell
    atlases*, Nat. Cell Biol. 25, 337 (2023). Kunes, Walle, Land, Nawy and Pe'er, *Supervised
    discovery of interpretable gene programs from single-cell data*, Nat. Biotechnol. 42, 1084
    (2024). Jacob, Obozinski and Vert, *Group lasso with overlap and graph lasso*, ICML 2009.

    Examples
    --------
    One gene of antigen presentation is replaced by another in the gene set:

    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> sets = tosica.gs.load("human_gobp")
    >>> name = "peptide antigen assembly with MHC class II protein complex"
    >>> sets[name] = [gene for gene in sets[name] if gene != "HLA-DRB1"] + ["PPIB"]
    >>> tosica.pp.build_mask(adata, sets, min_genes=10, max_jaccard=0.5)
    >>> tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
    >>> model = tosica.TOSICA(adata, max_gene_sets=None)
    >>> table = tosica.tl.refine_gene_sets(model)
    >>> table.loc[table["gene_set"] == name, ["gene", "change"]]
           gene  change
    0  HLA-DRB1  gained
    1      CD74  gained
    2       LYZ  gained
    3      PPIB    lost
    """
    check_model(model)
    if path is not None:
        check_path("path", path)
    check_number("price", price, above=0)
    check_fraction("min_recall", min_recall)
    check_fraction("min_stability", min_stability)
    check_count("n_bootstraps", n_bootstraps)
    check_count("random_state", random_state, least=0)
    sets = _read_gene_sets(model)
    x, labels = _read_reference(model)
    # Genes with constant expression neither join nor leave.
    varies = np.flatnonzero(x.min(0) < x.max(0))
    tried = sets._replace(genes=sets.genes[varies], members=sets.members[:, varies])
    scores = held_out_scores(describe_genes(x[:, varies], labels), tried.members)
    found = [refine(*pair, price) for pair in zip(scores, tried.members, strict=True)]
    refined = [p for p, each in enumerate(found) if each.recall > 0 and each.recall >= min_recall]
    members = tried.members[refined]
    stability = np.zeros(members.shape)
    n_drawn = n_bootstraps if refined else 0
    with progress(n_drawn, "refine_gene_sets", unit="bootstraps") as step:
        for cells in bootstrap(labels, n_drawn, random_state):
            genes = describe_genes(x[np.ix_(cells, varies)], labels[cells])
            for row, pair in enumerate(zip(held_out_scores(genes, members), members, strict=True)):
                repeated = refine(*pair, price)
                stability[row, np.append(repeated.gained, repeated.lost)] += 1 / n_bootstraps
            step.update()
    table = _table(tried, found, scores, dict(zip(refined, stability, strict=True)), min_stability)
    table.attrs["refined"] = [sets.names[p] for p in refined]
    if path is not None:
        write_gmt(_refined_sets(sets, table), path)
    logger.info(
        "refine_gene_sets: %d of %d gene sets refined, %d genes gained and %d lost%s",
        len(refined),
        len(sets.names),
        (table["change"] == "gained").sum(),
        (table["change"] == "lost").sum(),
        "" if path is None else f"; wrote {path}",
    )
    return table


class _GeneSets(NamedTuple):
    """Names of gene sets and genes, and which gene is in which set, ``(n_gene_sets, n_genes)``."""

    names: list[str]
    genes: NDArray[np.object_]
    members: NDArray[np.bool_]


def _read_gene_sets(model: TOSICA) -> _GeneSets:
    """Read the gene sets of a model, without modules and unannotated tokens.

    Raises
    ------
    ValueError
        If the model has no gene sets of its own, or no reference.
    """
    if is_joint(model.registry_):
        raise ValueError(
            "The model was set up with a MuData, and refine_gene_sets takes models of an AnnData "
            "only: train a model of one modality, as by TOSICA.setup_anndata(mdata['rna'], ...)."
        )
    modality = model.modalities[0]
    if modality.mask.get(MaskField.MIXED_KEY):
        raise ValueError(
            "The model is one of the original code, whose tokens mix gene sets, so that they "
            "cannot be refined: train a new model with tosica.TOSICA(adata)."
        )
    if model.adata is None:
        raise ValueError(
            "The model was loaded without a reference, by which gene sets are refined: pass it to "
            "TOSICA.load(folder, adata=reference)."
        )
    check_genes(model.adata, [modality])
    n_sets = len(model.gene_sets) - int(modality.mask.get(MaskField.MODULES_KEY, 0))
    tokens = model.tokens
    members = np.zeros((n_sets, len(modality.genes)), dtype=bool)
    for p in range(n_sets):
        members[p, tokens.genes[tokens.indptr[p] : tokens.indptr[p + 1]]] = True
    return _GeneSets(model.gene_sets[:n_sets], modality.genes.to_numpy(), members)


def _read_reference(model: TOSICA) -> tuple[NDArray[np.float32], NDArray[np.integer]]:
    """Read log-normalized expression and labels of at most 2 000 cells of the reference."""
    modality = model.modalities[0]
    labels = model._codes(REGISTRY_KEYS.LABELS_KEY).astype(np.int64)
    cells = subsample_by_label(labels, _MAX_CELLS)
    rows = CellMatrix(model.adata, layer=modality.layer)
    x: sp.csr_matrix = read_normalized(rows, cells, modality.slice)
    return x.astype(np.float32).toarray(), labels[cells]


def _table(
    sets: _GeneSets,
    found: list[Refinement],
    scores: NDArray[np.float64],
    stability: dict[int, NDArray[np.float64]],
    min_stability: float,
) -> pd.DataFrame:
    """Make the table of stable changes in the sets that ``stability`` has."""
    rows = []
    for p, share in stability.items():
        inside = sets.members[p]
        outside = scores[p][~inside].mean()
        evidence = (scores[p] - outside) / (scores[p][inside].mean() - outside)
        for change, genes in (("gained", found[p].gained), ("lost", found[p].lost)):
            rows += [
                (
                    sets.names[p],
                    str(sets.genes[g]),
                    change,
                    float(evidence[g]),
                    float(share[g]),
                    found[p].recall,
                )
                for g in genes[np.argsort(-evidence[genes], kind="stable")]
                if share[g] >= min_stability - 1e-9  # a sum of fractions
            ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _refined_sets(sets: _GeneSets, table: pd.DataFrame) -> dict[str, list[str]]:
    """Gene sets with the changes of the table: genes that stay, then those that joined."""
    refined = {
        name: [str(gene) for gene in sets.genes[inside]]
        for name, inside in zip(sets.names, sets.members, strict=True)
    }
    for key, rows in table.groupby("gene_set", sort=False):
        name = str(key)
        lost = set(rows.loc[rows["change"] == "lost", "gene"])
        kept = [gene for gene in refined[name] if gene not in lost]
        refined[name] = kept + list(rows.loc[rows["change"] == "gained", "gene"])
    return refined
