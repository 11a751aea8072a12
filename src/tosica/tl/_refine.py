"""Gene sets refined by co-expression: genes that join them, and genes that leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from sklearn.utils.extmath import randomized_svd

from tosica._checks import Fraction, Integer, Number, validate_params
from tosica._progress import progress
from tosica._settings import logger
from tosica.data import CellMatrix
from tosica.gs import write_gmt
from tosica.linear import LabeledRows, subsample_by_label
from tosica.model._fields import MaskField
from tosica.model._tosica import MODEL
from tosica.module import REGISTRY_KEYS
from tosica.tl._evidence import refuse_mudata

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from tosica.model import TOSICA

_COLUMNS = ["gene_set", "gene", "change", "evidence", "stability", "recall"]
# Correlations hardly change with more cells.
_MAX_CELLS = 2_000
# Of each of the two PCAs; fewer with few cells or genes.
_N_COMPONENTS = 50
# Standardized expression above this is clipped: otherwise single cells would decide on rare genes.
_MAX_EXPRESSION = 10
# Ridge penalty, relative to the mean variance of the loadings.
_RIDGE = 3.0
# Fewest genes of a set that must be found before other genes join it.
_FEWEST_FOUND = 3


@validate_params(
    model=MODEL,
    price=Number(above=0),
    min_recall=Fraction(),
    min_stability=Fraction(),
    random_state=Integer(least=0),
)
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
    9   HLA-DRB1  gained
    10      CD74  gained
    11       LYZ  gained
    12      PPIB    lost
    """
    sets = _read_gene_sets(model)
    x, labels = _read_reference(model)
    # Genes with constant expression neither join nor leave.
    varies = np.flatnonzero(x.min(0) < x.max(0))
    tried = sets._replace(genes=sets.genes[varies], members=sets.members[:, varies])
    scores = held_out_scores(describe_genes(x[:, varies], labels), tried.members)
    found = [refine(*pair, price) for pair in zip(scores, tried.members, strict=True)]
    refined = [
        p
        for p, each in enumerate(found)
        if each.recall > 0 and each.recall >= min_recall
    ]
    members = tried.members[refined]
    stability = np.zeros(members.shape)
    n_drawn = n_bootstraps if refined else 0
    # As many cells of each label as it has, with replacement.
    rng = np.random.default_rng(random_state)
    by_label = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    with progress(n_drawn, "refine_gene_sets", unit="bootstraps") as step:
        for _ in range(n_drawn):
            cells = np.concatenate(
                [rng.choice(of_label, len(of_label)) for of_label in by_label]
            )
            genes = describe_genes(x[np.ix_(cells, varies)], labels[cells])
            for row, pair in enumerate(
                zip(held_out_scores(genes, members), members, strict=True)
            ):
                repeated = refine(*pair, price)
                stability[row, np.append(repeated.gained, repeated.lost)] += (
                    1 / n_bootstraps
                )
            step.update()
    table = _table(
        tried, found, scores, dict(zip(refined, stability, strict=True)), min_stability
    )
    table.attrs["refined"] = [sets.names[p] for p in refined]
    if path is not None:
        write_gmt(_refined_sets(sets, table), path)
    n_gained, n_lost = (
        (table["change"] == change).sum() for change in ("gained", "lost")
    )
    wrote = "" if path is None else f"; wrote {path}"
    what = "refine_gene_sets: %d of %d gene sets refined, %d genes gained and %d lost%s"
    logger.info(what, len(refined), len(sets.names), n_gained, n_lost, wrote)
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
    refuse_mudata(model)
    modality = model.modalities[0]
    if modality.mask.get(MaskField.MIXED_KEY):
        raise ValueError(
            "The model is one of the original code, whose tokens mix gene sets, so that they cannot be refined: train "
            "a new model with tosica.TOSICA(adata)."
        )
    if model.adata is None:
        raise ValueError(
            "The model was loaded without a reference, by which gene sets are refined: pass it to "
            "TOSICA.load(folder, adata=reference)."
        )
    modality.check_genes(model.adata)
    n_sets = len(model.gene_sets) - int(modality.mask.get(MaskField.MODULES_KEY, 0))
    tokens = model.tokens
    members = np.zeros((n_sets, len(modality.genes)), dtype=bool)
    for p in range(n_sets):
        members[p, tokens.genes[tokens.indptr[p] : tokens.indptr[p + 1]]] = True
    return _GeneSets(model.gene_sets[:n_sets], modality.genes.to_numpy(), members)


def _read_reference(model: TOSICA) -> tuple[NDArray[np.float32], NDArray[np.integer]]:
    """Read log-normalized expression and labels of at most 2 000 cells of the reference."""
    modality = model.modalities[0]
    labels = np.ravel(
        model.adata_manager.get_from_registry(REGISTRY_KEYS.LABELS_KEY)
    ).astype(np.int64)
    cells = subsample_by_label(labels, _MAX_CELLS)
    rows = CellMatrix(model.adata, layer=modality.layer)
    drawn = LabeledRows(rows, cells, labels[cells], (modality.slice(),))
    return drawn.expression().astype(np.float32).toarray(), drawn.labels


def _table(
    sets: _GeneSets,
    found: list[Refinement],
    scores: NDArray[np.float64],
    stability: dict[int, NDArray[np.float64]],
    min_stability: float,
) -> pd.DataFrame:
    """Make the table of stable changes in the sets that ``stability`` has."""
    rows: list[tuple[str, str, str, float, float, float]] = []
    for p, share in stability.items():
        inside = sets.members[p]
        outside = scores[p][~inside].mean()
        evidence = (scores[p] - outside) / (scores[p][inside].mean() - outside)
        for change in ("gained", "lost"):
            genes: NDArray[np.intp] = getattr(found[p], change)
            for g in genes[np.argsort(-evidence[genes], kind="stable")]:
                if share[g] >= min_stability - 1e-9:  # a sum of fractions
                    numbers = float(evidence[g]), float(share[g]), found[p].recall
                    rows.append((sets.names[p], str(sets.genes[g]), change, *numbers))
    return pd.DataFrame(rows, columns=_COLUMNS)


def _refined_sets(sets: _GeneSets, table: pd.DataFrame) -> dict[str, list[str]]:
    """Gene sets with the changes of the table: genes that stay, then those that joined."""
    changes = {
        key: list(rows["gene"])
        for key, rows in table.groupby(["gene_set", "change"], sort=False)
    }
    refined = {}
    for name, inside in zip(sets.names, sets.members, strict=True):
        lost = changes.get((name, "lost"), [])
        kept = [gene for gene in map(str, sets.genes[inside]) if gene not in lost]
        refined[name] = kept + changes.get((name, "gained"), [])
    return refined


class Refinement(NamedTuple):
    """What changes in one gene set.

    ``gained`` and ``lost`` are positions of genes. ``recall`` is the share of the set's genes that
    are found among all other genes when they are held out.
    """

    gained: NDArray[np.intp]
    lost: NDArray[np.intp]
    recall: float


class Genes(NamedTuple):
    """Standardized expression, ``(n_cells, n_genes)``, and loadings, ``(n_genes, n_loadings)``."""

    z: NDArray[np.float32]
    loadings: NDArray[np.float64]


def describe_genes(x: NDArray[np.float32], labels: NDArray[np.integer]) -> Genes:
    """Describe each gene by its standardized expression, and by its loadings on two PCAs.

    The first PCA is that of standardized expression, the second that of its deviations from the
    mean of each label.

    Parameters
    ----------
    x
        Log-normalized expression, ``(n_cells, n_genes)``.
    labels
        Label of each cell as a number, ``(n_cells,)``.

    Returns
    -------
    Genes with constant expression are zeros.
    """
    z = _standardize(x)
    np.clip(z, None, _MAX_EXPRESSION, out=z)
    within = z.copy()
    for label in np.unique(labels):
        within[labels == label] -= within[labels == label].mean(0)
    loadings = np.hstack([_loadings(z), _loadings(_standardize(within))])
    return Genes(z, loadings.astype(np.float64))


def _standardize(x: NDArray[np.float32]) -> NDArray[np.float32]:
    centered = x - x.mean(0)
    deviation = centered.std(0)
    # Rounding errors of constant genes are not expression.
    varies = deviation > 1e-5
    return np.where(varies, centered / np.where(varies, deviation, 1), 0).astype(
        np.float32
    )


def _loadings(z: NDArray[np.float32]) -> NDArray[np.float32]:
    n_components = max(1, min(_N_COMPONENTS, z.shape[0] // 5, z.shape[1] // 5))
    _, values, components = randomized_svd(z, n_components, random_state=0)
    return components.T * (values / np.sqrt(len(z)))


def held_out_scores(genes: Genes, members: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Score every gene for every gene set by its co-expression with the set's genes.

    The score is the sum of two, each standardized: a ridge regression of membership on the
    loadings, and the mean correlation with the set's genes. The first is more accurate with many
    cells, the second with few.

    The score of a gene never uses its own membership. So scores of members and of other genes can
    be compared.

    Parameters
    ----------
    genes
        See :func:`describe_genes`.
    members
        Which gene is in which gene set, ``(n_gene_sets, n_genes)``.

    Returns
    -------
    Shape ``(n_gene_sets, n_genes)``.
    """
    outside = ~members
    n_outside = np.maximum(outside.sum(1, keepdims=True), 1)
    total = np.zeros(members.shape)
    for score in (
        ridge_scores(genes.loadings, members),
        mean_correlations(genes.z, members),
    ):
        score -= score.sum(1, keepdims=True, where=outside) / n_outside
        deviation = np.sqrt((score**2).sum(1, keepdims=True, where=outside) / n_outside)
        total += score / np.maximum(deviation, 1e-12)
    return total


def ridge_scores(
    loadings: NDArray[np.float64], members: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Predict membership by ridge regressions on the loadings, of each gene by those of the others.

    The formula for leave-one-out residuals of ridge regression gives the prediction of a gene by
    the regression without it.
    """
    n_genes, n_loadings = loadings.shape
    known = members.astype(np.float64)
    centered = loadings - loadings.mean(0)
    covariance = centered.T @ centered
    penalty = max(_RIDGE * np.trace(covariance) / n_loadings, 1e-12)
    solution = np.linalg.solve(covariance + penalty * np.eye(n_loadings), centered.T)
    # Diagonal of the hat matrix; the intercept, the mean of the membership, adds 1 / n_genes.
    leverage = np.einsum("gd,dg->g", centered, solution) + 1 / n_genes
    fitted = (known @ solution.T) @ centered.T + known.mean(1, keepdims=True)
    return (fitted - leverage * known) / (1 - leverage)


def mean_correlations(
    z: NDArray[np.float32], members: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Mean correlation of each gene with the other genes of a set, ``(n_gene_sets, n_genes)``."""
    known = members.astype(np.float32)
    n_others = np.maximum(members.sum(1, keepdims=True) - known, 1)
    with_itself = (z**2).mean(0)
    total = (known @ z.T / len(z)) @ z
    return ((total - known * with_itself) / n_others).astype(np.float64)


def refine(
    scores: NDArray[np.float64], members: NDArray[np.bool_], price: float
) -> Refinement:
    """Decide which genes join a gene set, and which leave it.

    Genes outside of the set join down to the lowest score at which ``price`` of its own genes are
    found for each of them. Genes of the set leave up to the highest score at which a score that low
    is ``price`` times as frequent outside of the set as in it.

    Parameters
    ----------
    scores
        Scores of all genes for one gene set, ``(n_genes,)``.
    members
        Which genes are in the set, ``(n_genes,)``.
    price
        Own genes found for each gene that joins.
    """
    order = np.argsort(-scores, kind="stable")
    inside = members[order]
    n_found, n_others = np.cumsum(inside), np.cumsum(~inside)
    n_members, n_outside = max(int(n_found[-1]), 1), max(int(n_others[-1]), 1)
    # Up to a member: below the last one that is found, genes are less like the set than it is.
    paid = inside & (n_found >= price * n_others) & (n_found >= _FEWEST_FOUND)
    last = int(np.flatnonzero(paid)[-1]) + 1 if paid.any() else 0
    gained = order[:last][~inside[:last]]
    recall = float(n_found[last - 1]) / n_members if last else 0.0
    # From here to the end of the order, i.e. with scores that low.
    share_inside = np.cumsum(inside[::-1])[::-1] / n_members
    share_outside = np.cumsum(~inside[::-1])[::-1] / n_outside
    unlike = np.flatnonzero(inside & (price * share_inside <= share_outside))
    first = int(unlike[0]) if len(unlike) else len(order)
    lost = order[max(first, last) :]
    return Refinement(np.sort(gained), np.sort(lost[members[lost]]), recall)
