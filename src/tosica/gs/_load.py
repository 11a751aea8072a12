"""Loading a named collection."""

from __future__ import annotations

from difflib import get_close_matches

from tosica.gs._resources import collection_names, read_collection


def load(name: str) -> dict[str, list[str]]:
    """Load a collection of gene sets that comes with the package.

    Nothing is downloaded. The first call reads the file, later calls are answered from memory.

    Parameters
    ----------
    name
        Name of the collection, one of the index of :func:`tosica.gs.collections`. At present:

        ``"human_gobp"``
            Human biological processes of the Gene Ontology (Ashburner et al., Nat. Genet. 25,
            25, 2000; The Gene Ontology Consortium, Nucleic Acids Res. 54, D1779, 2026; CC BY
            4.0) with 10 to 300 genes each, as gene symbols. A process holds the genes of its
            subprocesses, of its parts and of what regulates it; all evidence codes count.

    Returns
    -------
    dict
        Gene set name to list of genes, in the order of the collection. It is the caller's own:
        changing it changes nothing else.

    Raises
    ------
    TypeError
        If `name` is not a string.
    ValueError
        If there is no collection of that name.

    See Also
    --------
    collections : sources, releases and licences.
    read_gmt : gene sets from a file.

    Examples
    --------
    >>> import tosica
    >>> gene_sets = tosica.gs.load("human_gobp")
    >>> "CD3E" in gene_sets["T cell receptor signaling pathway"]
    True
    """
    if not isinstance(name, str):
        msg = f"The name of a gene set collection must be a string, not {type(name).__name__}."
        raise TypeError(msg)
    names = collection_names()
    if name not in names:
        nearest = get_close_matches(name.lower(), names, n=1, cutoff=0.4)
        suggestion = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        msg = (
            f"There is no gene set collection {name!r}{suggestion}; those that exist: "
            f"{', '.join(names)}; to read a file, use tosica.gs.read_gmt."
        )
        raise ValueError(msg)
    return {gene_set: list(genes) for gene_set, genes in read_collection(name).items()}
