"""Synthetic counts of any size."""

from __future__ import annotations

from anndata import AnnData
from scipy.sparse import vstack

from tosica.datasets import _droplets

_CELLS_AT_ONCE = 1_000


def synthetic(
    n_obs: int = 2000,
    n_vars: int = 3000,
    *,
    n_labels: int = 13,
    n_batches: int = 2,
    n_gene_sets: int = 300,
    batch_effect: float = 0.25,
    seed: int = 0,
) -> AnnData:
    """Make up counts that look like those of blood cells in droplets, with labels to learn.

    Labels differ by gene sets alone, and it is known by which: a model can be tested for what it
    predicts and for what it gives as the reason. Nothing is read but the gene sets that come with
    the package.

    Parameters
    ----------
    n_obs
        Number of cells, at least two for each label.
    n_vars
        Number of genes.
    n_labels
        Number of labels, at least 2.
    n_batches
        Number of batches.
    n_gene_sets
        Number of gene sets that are active in some cells, at least `n_labels`: those that
        :func:`tosica.pp.build_mask` keeps with ``max_gene_sets=n_gene_sets, max_jaccard=1``.
    batch_effect
        Standard deviation of the logarithm of the factor by which a batch changes a gene, 0 to 5.
    seed
        Seed of all random numbers, independent of any global state. The same parameters give the
        same data; more cells under the same seed are different cells.

    Returns
    -------
    AnnData, (n_obs, n_vars):

    `.X`
        Counts, :class:`scipy.sparse.csr_matrix` of float32 with sorted indices. No cell is empty.
    `.obs`
        ``cell_type`` and ``batch``, both categorical. ``type_01`` is the most frequent label,
        each later one is rarer than the one before, and every label has at least two cells.
        Batches are equally large and independent of the labels.
    `.var_names`
        Symbols of genes of the collection ``human_gobp``, which depend on `n_vars` only. Where it
        has too few, ``SYNTHETIC1``, ``SYNTHETIC2``, … follow, which are in no gene set.
    `.uns["synthetic"]`
        A dict that h5ad and zarr can store:

        - ``gene_sets``: dict of label to the names of the gene sets that it raises, (3,), or fewer
          where `n_gene_sets` is below ``3 * n_labels``
        - ``collection``: where these names are from, ``"human_gobp"``
        - ``params``: the parameters

    Raises
    ------
    TypeError
        A number of something, or `seed`, is no whole number, or `batch_effect` no number.
    ValueError
        A parameter is out of range; `n_obs` is below ``2 * n_labels`` or below `n_batches`;
        `n_gene_sets` is below `n_labels`; or `n_vars` genes do not fill `n_gene_sets` gene sets
        with five genes each (it takes about as many genes as gene sets).

    See Also
    --------
    write_synthetic : the same data, written to a file without ever being in memory.

    Notes
    -----
    The numbers are those of the 3 000 most variable genes of the PBMCs of Kang et al., Nat.
    Biotechnol. 36, 89 (2018): a median of about 370 counts a cell, log-normally distributed within
    a label; about 5 % of the values above zero; half of the counts from the ten strongest genes,
    by Zipf's law. Counts grow with `n_vars`, and below 3 000 genes shrink with its square root.
    Of 13 labels the rarest has 0.07 % of the cells.

    In every cell seven gene sets are active: the three of its label, and four drawn at random.
    Relative to the baseline's expression, which is 1 in total, each adds an amount of its own that
    is exponentially distributed with mean 0.03, spread over the set's genes in proportion to the
    square root of their baseline. Batches multiply all genes by log-normal factors. Counts are
    Poisson draws. A gene set that shares genes with a raised one rises with it, as sets of the
    Gene Ontology do; those raised share as few genes with each other as can be found.

    Another seed has other labels: to get a reference and a query, split one data set, for example
    by its batches.

    Time grows with the number of counts: 100 000 cells × 3 000 genes take some ten seconds on one
    core. The memory needed is about twice that of the result.

    Examples
    --------
    >>> import tosica
    >>> adata = tosica.datasets.synthetic(500, 1000, n_labels=4)
    >>> adata.shape
    (500, 1000)
    >>> adata.obs.columns.to_list()
    ['cell_type', 'batch']
    >>> adata.obs["cell_type"].cat.categories.to_list()
    ['type_1', 'type_2', 'type_3', 'type_4']
    >>> len(adata.uns["synthetic"]["gene_sets"]["type_1"])
    3
    >>> tosica.pp.build_mask(adata, max_jaccard=1)
    >>> set(adata.uns["synthetic"]["gene_sets"]["type_1"]) <= set(
    ...     adata.uns["tosica_mask"]["gene_sets"]
    ... )
    True
    """
    plan = _droplets.plan(
        n_obs,
        n_vars,
        n_labels=n_labels,
        n_batches=n_batches,
        n_gene_sets=n_gene_sets,
        batch_effect=batch_effect,
        seed=seed,
    )
    blocks = list(_droplets.draw(plan, cells_at_once=_CELLS_AT_ONCE))
    return AnnData(vstack(blocks, format="csr"), obs=plan.obs, var=plan.var, uns=plan.uns)
