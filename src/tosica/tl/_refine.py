"""Gene sets refined by co-expression: genes that join them, and genes that leave."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.utils.extmath import randomized_svd

from tosica._files import resolve_output
from tosica._progress import progress
from tosica._settings import logger
from tosica._validate import Fraction, Integer, Number, validate_params
from tosica.data import CellMatrix
from tosica.gs import write_gmt
from tosica.gs._gene_sets import GeneSets
from tosica.linear import LabeledRows, subsample_by_label
from tosica.model._fields import MaskField
from tosica.model._tosica import MODEL
from tosica.module import REGISTRY_KEYS
from tosica.tl._evidence import refuse_mudata

if TYPE_CHECKING:
    from tosica._types import AnyPath, BoolArray, Float32Array, FloatArray, IntArray
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
_MIN_FOUND = 3


@validate_params(
    model=MODEL,
    price=Number(above=0),
    min_recall=Fraction(),
    min_stability=Fraction(),
    random_state=Integer(least=0),
)
def refine_gene_sets(
    model: TOSICA,
    path: AnyPath | None = None,
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
    if path is not None:
        resolve_output(Path(path))
    gene_sets = _read_gene_sets(model)
    x, labels = _read_reference(model)
    # Genes with constant expression neither join nor leave.
    varies = np.flatnonzero(x.min(0) < x.max(0))
    x = x[:, varies]
    gene_names = gene_sets.gene_names.to_numpy(dtype=object)[varies]
    members = gene_sets.members[:, varies].toarray()
    scores = held_out_scores(describe_genes(x, labels), members)
    refinements = refine_each(scores, members, price)
    recall = np.array([refinement.recall for refinement in refinements])
    refined = np.flatnonzero((recall > 0) & (recall >= min_recall))
    stability = _bootstrap(
        x, labels, members[refined], price, n_bootstraps, random_state
    )
    changes = [pd.DataFrame(columns=_COLUMNS)]
    for i, share in zip(refined, stability, strict=True):
        of_set = _changes(scores[i], members[i], refinements[i], share)
        of_set = of_set[of_set["stability"] >= min_stability]
        gene = gene_names[of_set["gene"]].astype(str)
        changes.append(of_set.assign(gene_set=str(gene_sets.names[i]), gene=gene))
    table = pd.concat(changes[1:] or changes, ignore_index=True)[_COLUMNS]
    table.attrs["refined"] = [str(name) for name in gene_sets.names[refined]]
    if path is not None:
        write_gmt(_apply(gene_sets, table), path)
    logger.info(
        "refine_gene_sets: %d of %d gene sets refined, %d genes gained and %d lost%s",
        len(refined),
        len(gene_sets),
        (table["change"] == "gained").sum(),
        (table["change"] == "lost").sum(),
        "" if path is None else f"; wrote {path}",
    )
    return table


def _read_gene_sets(model: TOSICA) -> GeneSets:
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
    modality.check_reference(model.adata)
    n_modules = int(modality.mask.get(MaskField.MODULES_KEY, 0))
    n_sets = len(model.gene_sets) - n_modules
    tokens = model.tokens
    indptr = tokens.indptr[: n_sets + 1]
    genes = tokens.genes[: indptr[-1]]
    mask = sp.csc_matrix(
        (np.ones(len(genes), dtype=bool), genes, indptr),
        shape=(len(modality.genes), n_sets),
    )
    return GeneSets.from_mask(model.gene_sets[:n_sets], modality.genes, mask)


def _read_reference(model: TOSICA) -> tuple[Float32Array, IntArray]:
    """Read log-normalized expression and labels of at most 2 000 cells of the reference."""
    modality = model.modalities[0]
    registered = model.adata_manager.get_from_registry(REGISTRY_KEYS.LABELS_KEY)
    labels = np.ravel(registered).astype(np.int64)
    cells = subsample_by_label(labels, _MAX_CELLS)
    matrix = CellMatrix(
        model.adata, layer=modality.layer, normalization=modality.normalization
    )
    labeled = LabeledRows(matrix, cells, labels[cells], (modality.slice(),))
    return labeled.expression().astype(np.float32).toarray(), labeled.labels


def _bootstrap(
    x: Float32Array,
    labels: IntArray,
    members: BoolArray,
    price: float,
    n_bootstraps: int,
    random_state: int,
) -> FloatArray:
    """Share of the bootstraps that change each gene's membership, ``(n_sets, n_genes)``."""
    n_changes = np.zeros(members.shape)
    if not len(members):
        return n_changes
    # As many cells of each label as it has, with replacement.
    rng = np.random.default_rng(random_state)
    by_label = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    with progress(n_bootstraps, "refine_gene_sets", unit="bootstraps") as step:
        for _ in range(n_bootstraps):
            resampled = [rng.choice(of_label, len(of_label)) for of_label in by_label]
            cells = np.concatenate(resampled)
            scores = held_out_scores(describe_genes(x[cells], labels[cells]), members)
            for i, refinement in enumerate(refine_each(scores, members, price)):
                n_changes[i, refinement.gained] += 1
                n_changes[i, refinement.lost] += 1
            step.update()
    return n_changes / n_bootstraps


def _changes(
    scores: FloatArray,
    members: BoolArray,
    refinement: Refinement,
    stability: FloatArray,
) -> pd.DataFrame:
    """Table of the changes of one gene set: genes that join, then those that leave."""
    outside = scores[~members].mean()
    evidence = (scores - outside) / (scores[members].mean() - outside)
    genes = np.append(refinement.gained, refinement.lost)
    n_changes = [len(refinement.gained), len(refinement.lost)]
    table = pd.DataFrame(
        {
            "gene": genes,
            "change": np.repeat(["gained", "lost"], n_changes),
            "evidence": evidence[genes],
            "stability": stability[genes],
            "recall": refinement.recall,
        }
    )
    return table.sort_values(["change", "evidence"], ascending=[True, False])


def _apply(gene_sets: GeneSets, table: pd.DataFrame) -> dict[str, list[str]]:
    """Change gene sets by the table: genes that stay, then those that joined."""
    refined = gene_sets.to_dict()
    for name, changes in table.groupby("gene_set", sort=False):
        is_lost = changes["change"] == "lost"
        lost = set(changes["gene"][is_lost])
        staying = [gene for gene in refined[str(name)] if gene not in lost]
        refined[str(name)] = staying + list(changes["gene"][~is_lost])
    return refined


class Refinement(NamedTuple):
    """Changes of one gene set.

    ``gained`` and ``lost`` are positions of genes. ``recall`` is the share of the set's genes that
    are found among all other genes when they are held out.
    """

    gained: IntArray
    lost: IntArray
    recall: float


class Genes(NamedTuple):
    """Standardized expression, ``(n_cells, n_genes)``, and loadings, ``(n_genes, n_loadings)``."""

    z: Float32Array
    loadings: FloatArray


def describe_genes(x: Float32Array, labels: IntArray) -> Genes:
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


def _standardize(x: Float32Array) -> Float32Array:
    centered = x - x.mean(0)
    deviation = centered.std(0)
    # Rounding errors of constant genes are not expression.
    varies = deviation > 1e-5
    return np.where(varies, centered / np.where(varies, deviation, 1), 0).astype(
        np.float32
    )


def _loadings(z: Float32Array) -> Float32Array:
    n_components = max(1, min(_N_COMPONENTS, z.shape[0] // 5, z.shape[1] // 5))
    _, values, components = randomized_svd(z, n_components, random_state=0)
    return components.T * (values / np.sqrt(len(z)))


def held_out_scores(genes: Genes, members: BoolArray) -> FloatArray:
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
    ridge = ridge_scores(genes.loadings, members)
    correlation = mean_correlations(genes.z, members)
    for score in (ridge, correlation):
        mean = score.sum(1, keepdims=True, where=outside) / n_outside
        centered = score - mean
        squares = (centered**2).sum(1, keepdims=True, where=outside)
        deviation = np.sqrt(squares / n_outside)
        total += centered / np.maximum(deviation, 1e-12)
    return total


def ridge_scores(loadings: FloatArray, members: BoolArray) -> FloatArray:
    """Predict membership by ridge regressions on the loadings, of each gene by those of the others.

    The formula for leave-one-out residuals of ridge regression gives the prediction of a gene by
    the regression without it.
    """
    n_genes, n_loadings = loadings.shape
    membership = members.astype(np.float64)
    centered = loadings - loadings.mean(0)
    covariance = centered.T @ centered
    penalty = max(_RIDGE * np.trace(covariance) / n_loadings, 1e-12)
    solution = np.linalg.solve(covariance + penalty * np.eye(n_loadings), centered.T)
    # Diagonal of the hat matrix; the intercept, the mean of the membership, adds 1 / n_genes.
    leverage = np.einsum("gd,dg->g", centered, solution) + 1 / n_genes
    mean = membership.mean(1, keepdims=True)
    fitted = (membership @ solution.T) @ centered.T + mean
    return (fitted - leverage * membership) / (1 - leverage)


def mean_correlations(z: Float32Array, members: BoolArray) -> FloatArray:
    """Mean correlation of each gene with the other genes of a set, ``(n_gene_sets, n_genes)``."""
    membership = members.astype(np.float32)
    n_genes = np.maximum(members.sum(1, keepdims=True) - membership, 1)
    with_itself = (z**2).mean(0)
    total = (membership @ z.T / len(z)) @ z
    return ((total - membership * with_itself) / n_genes).astype(np.float64)


def refine_each(
    scores: FloatArray, members: BoolArray, price: float
) -> list[Refinement]:
    """Refine each gene set, see :func:`refine`; both arrays are ``(n_gene_sets, n_genes)``."""
    pairs = zip(scores, members, strict=True)
    return [refine(of_set, in_set, price) for of_set, in_set in pairs]


def refine(scores: FloatArray, members: BoolArray, price: float) -> Refinement:
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
    n_inside = np.cumsum(inside)
    n_outside = np.cumsum(~inside)
    n_members = max(int(n_inside[-1]), 1)
    n_others = max(int(n_outside[-1]), 1)
    # Up to a member: below the last one that is found, genes are less like the set than it is.
    paid = inside & (n_inside >= price * n_outside) & (n_inside >= _MIN_FOUND)
    n_joined = int(np.flatnonzero(paid)[-1]) + 1 if paid.any() else 0
    gained = order[:n_joined][~inside[:n_joined]]
    recall = float(n_inside[n_joined - 1]) / n_members if n_joined else 0.0
    # From here to the end of the order, i.e. with scores that low.
    share_inside = np.cumsum(inside[::-1])[::-1] / n_members
    share_outside = np.cumsum(~inside[::-1])[::-1] / n_others
    unlike = np.flatnonzero(inside & (price * share_inside <= share_outside))
    begin = max(int(unlike[0]), n_joined) if len(unlike) else len(order)
    low = order[begin:]
    return Refinement(np.sort(gained), np.sort(low[members[low]]), recall)
