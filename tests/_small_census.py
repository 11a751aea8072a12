"""A census of some hundred made-up cells in the layout of CELLxGENE Census, for its real client.

The organs do not exist. ``make_census`` writes to a folder, and ``CELLS`` says what is in it.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp
from _cells import split_pbmc

import tosica
from tosica.datasets._census_client import TILEDB_CONFIG
from tosica.onto._ontology import read_ontology

VERSION = "2025-11-08"
N_GENES = 5_200
N_GENES_OF_PANEL = 300
GLOW = ("glow organ", "UBERON:9000001")
UPPER_GLOW = ("upper glow organ", "UBERON:9000002")
HUMMING = ("humming gland", "UBERON:9000003")
B, T, CD4, CD8, MONOCYTE, NK = (
    f"CL:{number}"
    for number in ("0000236", "0000084", "0000624", "0000625", "0000576", "0000623")
)


class Group(NamedTuple):
    """Cells that are alike in all columns."""

    n_cells: int
    type: str
    dataset: str = "study-a"
    donor: str = "donor 1"
    organ: tuple[str, str] = GLOW
    tissue: tuple[str, str] = GLOW
    is_primary: bool = True
    disease: str = "normal"
    assay: str = "10x 3' v3"
    suspension: str = "cell"
    stage: str = "45-year-old stage"
    tissue_type: str = "tissue"


CELLS = [
    Group(90, B),
    Group(30, B, donor="donor 2", stage="20-year-old stage", tissue=UPPER_GLOW),
    Group(60, B, dataset="study-b", assay="10x 5' v2"),
    Group(80, CD4),
    Group(40, CD4, dataset="study-b", donor="donor 9", suspension="nucleus"),
    Group(40, CD8, dataset="study-b"),
    Group(40, T, donor="donor 2"),
    Group(50, MONOCYTE),
    Group(40, MONOCYTE, disease="glow fever || cold", dataset="study-b"),
    Group(3, NK),
    Group(20, "unknown"),
    Group(50, B, is_primary=False),
    Group(35, B, tissue_type="organoid"),
    Group(35, B, dataset="panel"),
    Group(40, B, organ=HUMMING, tissue=HUMMING, stage="adult stage"),
    Group(40, CD4, organ=HUMMING, tissue=HUMMING, dataset="study-b"),
]
DATASETS = ["study-a", "study-b", "panel", "study-elsewhere"]
MOUSE_CELLS = [Group(40, B), Group(40, T)]


@cache
def genes():
    """Ensembl ids by symbol: real genes, of which a mask can be built, and made-up ones."""
    symbols = split_pbmc()[0].var_names
    ids = tosica.gs.map_genes(symbols, to="ensembl", organism="human").dropna()
    ids = ids[~ids.duplicated()]
    numbers = range(N_GENES - len(ids))
    made_up = pd.Series({f"GENE{i}": f"ENSG99{i:09}" for i in numbers})
    return pd.concat([ids, made_up])


def _obs(groups):
    names = read_ontology().names
    rows = []
    for group in groups:
        row = {
            "dataset_id": group.dataset,
            "donor_id": group.donor,
            "cell_type": names.get(group.type, "unknown"),
            "cell_type_ontology_term_id": group.type,
            "assay": group.assay,
            "disease": group.disease,
            "suspension_type": group.suspension,
            "development_stage": group.stage,
            "sex": "female",
            "tissue": group.tissue[0],
            "tissue_ontology_term_id": group.tissue[1],
            "tissue_general": group.organ[0],
            "tissue_general_ontology_term_id": group.organ[1],
            "tissue_type": group.tissue_type,
        }
        rows += [row | {"is_primary_data": group.is_primary}] * group.n_cells
    obs = pd.DataFrame(rows)
    for name in obs.columns.drop("is_primary_data"):
        obs[name] = obs[name].astype("category")
    obs.index = [str(i) for i in range(len(obs))]
    # Cells of a study are together, types are not.
    order = np.random.default_rng(0).permutation(len(obs))
    return obs.iloc[
        order[np.argsort(obs["dataset_id"].cat.codes.to_numpy()[order], kind="stable")]
    ]


def counts(terms, n_genes, seed=0):
    """Draw counts: of each type, 60 genes of its own and 60 that T cells share are high."""
    rng = np.random.default_rng(seed)
    programs = [B, T, CD4, CD8, MONOCYTE, NK]
    rate = np.full((len(terms), n_genes), 0.03, dtype=np.float32)
    for i, term in enumerate(programs):
        rate[terms == term, 60 * i : 60 * (i + 1)] = 3
    is_t = np.isin(terms, [T, CD4, CD8])
    rate[is_t, 60 * len(programs) : 60 * (len(programs) + 1)] = 3
    return sp.csr_matrix(rng.poisson(rate).astype(np.float32))


def make_cells(groups, *, seed=0):
    """Make the cells of one organism."""
    ids = genes()
    obs = _obs(groups)
    terms = obs["cell_type_ontology_term_id"].astype(str).to_numpy()
    matrix = counts(terms, len(ids), seed)
    obs = obs.assign(nnz=np.diff(matrix.indptr).astype(np.int64))
    var = pd.DataFrame({"feature_id": ids.to_numpy(), "feature_name": ids.index})
    return ad.AnnData(matrix, obs=obs, var=var.set_index(ids.to_numpy()))


def make_census(
    folder,
    *,
    schema="2.4.0",
    version=VERSION,
    without="",
    organisms=("homo_sapiens", "mus_musculus"),
):
    """Write the census to a folder; ``without`` names a column that the cells do not have."""
    import pyarrow as pa
    import tiledbsoma as soma
    import tiledbsoma.io

    # As when it is read: on its own, the client allocates 1 GB for each column.
    context = soma.SOMATileDBContext(tiledb_config=TILEDB_CONFIG)
    root = str(folder)
    groups_of = {"homo_sapiens": CELLS, "mus_musculus": MOUSE_CELLS}
    with soma.Collection.create(root, context=context) as census:
        census.add_new_collection("census_data")
        info = census.add_new_collection("census_info")
        _add_table(
            info,
            "summary",
            label=["census_schema_version", "census_build_date"],
            value=[schema, version],
        )
        _add_table(
            info,
            "datasets",
            dataset_id=DATASETS,
            dataset_title=[f"Title of {name}" for name in DATASETS],
            collection_doi=[f"10.1/{name}" for name in DATASETS],
            citation=[f"Publication: https://doi.org/10.1/{name}" for name in DATASETS],
        )
    for name in organisms:
        cells = make_cells(groups_of[name])
        if without:
            del cells.obs[without]
        uri = f"{root}/census_data/{name}"
        with warnings.catch_warnings(action="ignore"):
            tiledbsoma.io.from_anndata(
                uri, cells, "RNA", X_layer_name="raw", context=context
            )
        with soma.Measurement.open(
            f"{uri}/ms/RNA", "w", context=context
        ) as measurement:
            presence = measurement.add_new_sparse_ndarray(
                "feature_dataset_presence_matrix",
                type=pa.uint8(),
                shape=(len(DATASETS), cells.n_vars),
            )
            is_measured = np.ones((len(DATASETS), cells.n_vars), dtype=np.uint8)
            is_measured[DATASETS.index("panel"), N_GENES_OF_PANEL:] = 0
            # A gene that one study did not measure.
            is_measured[DATASETS.index("study-b"), -1] = 0
            presence.write(pa.SparseCOOTensor.from_scipy(sp.coo_matrix(is_measured)))
        # What is left open may crash Python when it is collected.
        with (
            soma.Experiment.open(uri, context=context) as experiment,
            soma.Collection.open(f"{root}/census_data", "w", context=context) as data,
        ):
            data.set(name, experiment, use_relative_uri=True)
    return folder


def _add_table(info, name, **columns):
    import pyarrow as pa

    n_rows = len(next(iter(columns.values())))
    table = pa.table({"soma_joinid": list(range(n_rows)), **columns})
    with info.add_new_dataframe(
        name, schema=table.schema, domain=[[0, n_rows - 1]]
    ) as frame:
        frame.write(table)
