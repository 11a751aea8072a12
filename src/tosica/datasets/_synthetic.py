"""Synthetic counts of any size."""

from __future__ import annotations

from anndata import AnnData
from scipy.sparse import vstack

from tosica._checks import validate_params
from tosica.datasets import _droplets

_CELLS_AT_ONCE = 1_000


@validate_params(**_droplets.PARAMETERS)
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
    """Simulate droplet counts of blood cells, with labels that differ in known gene sets.

    Predictions of a model, and its explanations, can be tested on them. Only the gene sets inside
    the package are read.

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
        Number of gene sets that are active in some cells, at least ``n_labels``: those that
        :func:`tosica.pp.build_mask` keeps with ``max_gene_sets=n_gene_sets, max_jaccard=1``.
    batch_effect
        Standard deviation of the logarithm of the factor by which a batch changes a gene, 0 to 5.
    seed
        Seed of all random numbers, independent of any global state. The same parameters give the
        same data. With another ``n_obs``, all cells differ.

    Returns
    -------
    AnnData
        ``(n_obs, n_vars)``, with:

        ``.X``
            Counts, :class:`scipy.sparse.csr_matrix` of float32 with sorted indices. No cell is
            empty.
        ``.obs``
            ``cell_type`` and ``batch``, both categorical. Labels are sorted by frequency, starting
            with the most frequent one, ``type_01``, and have at least two cells each. Batches have
            equal sizes and are independent of the labels.
        ``.var_names``
            Gene symbols of the collection ``human_gobp``, which depend on ``n_vars`` only. If it
            has too few, ``SYNTHETIC1``, ``SYNTHETIC2``, … follow, which are in no gene set.
        ``.uns["synthetic"]``
            A dict that h5ad and zarr can store:

            - ``gene_sets``: dict of label to the names of its active gene sets, ``(3,)``, or fewer
              if ``n_gene_sets`` is below ``3 * n_labels``
            - ``collection``: collection of these gene sets, ``"human_gobp"``
            - ``params``: the parameters

    Raises
    ------
    TypeError
        If a count or ``seed`` is not a whole number, or ``batch_effect`` is not a number.
    ValueError
        If a parameter is out of range, ``n_obs`` is below ``2 * n_labels`` or ``n_batches``,
        ``n_gene_sets`` is below ``n_labels``, or ``n_vars`` genes do not fill ``n_gene_sets`` sets
        with five genes each (about as many genes as gene sets are needed).

    See Also
    --------
    write_synthetic : write the same data to a file without holding them in memory.

    Notes
    -----
    The parameters are estimated from the 3 000 most variable genes of the PBMCs of Kang et al.,
    Nat. Biotechnol. 36, 89 (2018). The median of a cell is about 370 counts, with a log-normal
    distribution within a label. About 5 % of the values are above zero. By Zipf's law, the ten
    strongest genes have half of the counts. Counts are proportional to ``n_vars``, and to its
    square root below 3 000 genes. The rarest of 13 labels has 0.07 % of the cells.

    Seven gene sets are active in each cell: the three of its label, and four random ones. The
    baseline expression is 1 in total. Each active set adds an exponentially distributed amount with
    mean 0.03, which is distributed over its genes in proportion to the square root of their
    baseline. Batches multiply all genes by log-normal factors. Counts are Poisson draws. Gene sets
    that share genes with an active one also increase, as in the Gene Ontology. The active sets of
    labels overlap as little as possible.

    Another seed gives other labels. To get a reference and a query, split one data set, for example
    by its batches.

    The run time is proportional to the number of counts: 100 000 cells × 3 000 genes take about
    ten seconds on one core. The memory needed is about twice that of the result.

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
    >>> set(adata.uns["synthetic"]["gene_sets"]["type_1"]) <= set(adata.uns["tosica_mask"]["gene_sets"])
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
