"""Build a model from the folder that the original code leaves after training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData

from tosica._settings import logger, warn_user
from tosica.data import Scale
from tosica.legacy import LegacyProject, read_project
from tosica.model._fields import ExpressionField, MaskField
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from tosica.model._setup import SetupMixin


ModelT = TypeVar("ModelT", bound="SetupMixin")

_SOURCE, _ORGANISM = "legacy project", "unknown"
_MIXED_TOKENS = (
    "In a model of the original code each token mixes numbers of several gene sets, so attention "
    "under a gene set's name is what the original reported, but is not about that set alone."
)


def load_legacy(
    cls: type[ModelT],
    project_dir: str | Path,
    var_names: Iterable[str] | None,
    *,
    n_heads: int,
    weights: str | None,
    labels_key: str | None,
    target_sum: float,
    adata: AnnData | None,
    device: torch.device,
) -> ModelT:
    """Load a legacy project, as documented in :meth:`TOSICA.load_legacy`."""
    project = read_project(Path(project_dir), var_names, n_heads, weights)
    if labels_key is not None:
        project = project._replace(labels_key=labels_key)
    registry = _make_registry(cls, project, target_sum)
    if adata is not None:
        _setup_reference(cls, adata, project, registry)
    model = cls(
        adata,
        registry=None if adata is not None else registry,
        embed_dim=project.embed_dim,
        n_heads=int(n_heads),
        n_layers=project.n_layers,
        linear=False,
        max_gene_sets=None,
        modules=False,
    )
    # Buffers are not in the project, and stay as they are.
    model.module.load_state_dict({**model.module.state_dict(), **project.state})
    model.is_trained_ = True
    model.to_device(device)
    model.module.eval()
    logger.info(
        "load_legacy: read %s: %d genes, %d tokens, %d labels, width %d, %d layers",
        project.weights,
        len(project.genes),
        len(project.gene_sets),
        len(project.labels),
        project.embed_dim,
        project.n_layers,
    )
    warn_user(_MIXED_TOKENS)
    return model


def _make_registry(cls: type[ModelT], project: LegacyProject, target_sum: float) -> dict[str, Any]:
    """Registry that ``setup_anndata`` would have made from the project's reference."""
    reference = _minimal_reference(project)
    cls.setup_anndata(reference, labels_key=project.labels_key)
    manager = cls._get_most_recent_anndata_manager(reference, required=True)
    # scvi-tools keeps every manager for further models of the same data. There will be none.
    del cls._setup_adata_manager_store[manager.adata_uuid]
    fields = manager.registry["field_registries"]
    # The original uses expression as it is: usually normalised over all genes, and then subset.
    scale = Scale("log1p", float(target_sum), "matrix")
    fields[REGISTRY_KEYS.X_KEY]["state_registry"][ExpressionField.SCALE_KEY] = scale._asdict()
    fields[REGISTRY_KEYS.X_KEY]["summary_stats"]["n_cells"] = 0
    fields[REGISTRY_KEYS.MASK_KEY]["state_registry"][MaskField.MIXED_KEY] = True
    return manager.registry


def _minimal_reference(project: LegacyProject) -> AnnData:
    """Smallest AnnData with the project's genes, labels and mask: two cells a label."""
    codes = np.repeat(np.arange(len(project.labels)), 2)
    # Cells that are all equal would be refused.
    values = np.linspace(1.25, 1.75, len(codes))
    first_gene = (values, (np.arange(len(codes)), np.zeros(len(codes), int)))
    reference = AnnData(sp.csr_matrix(first_gene, (len(codes), len(project.genes)), np.float32))
    reference.var_names = pd.Index(project.genes)
    reference.obs[project.labels_key] = pd.Categorical.from_codes(codes, pd.Index(project.labels))
    _write_mask(reference, "tosica_mask", project)
    return reference


def _setup_reference(cls: type[ModelT], adata: AnnData, project: LegacyProject, registry: dict[str, Any]) -> None:
    """Set up a reference to go on training with. If it does not fit, it stays unchanged."""
    if list(adata.var_names) != project.genes.tolist():
        raise ValueError(
            "adata's var_names are not the legacy model's genes in the model's order: load it "
            "without adata and take adata[:, model.get_var_names()]."
        )
    key = registry["setup_args"]["mask_key"]
    exists = key in adata.varm or key in adata.uns
    if exists and not _is_mask_of(adata, key, project):
        raise ValueError(
            f"adata.varm[{key!r}] and adata.uns[{key!r}] do not hold the legacy model's mask: "
            "delete both, and load_legacy writes the mask there."
        )
    if not exists:
        _write_mask(adata, key, project)
    try:
        cls._setup_from_registry(adata, registry)
    except BaseException:
        if not exists:
            del adata.varm[key], adata.uns[key]
        raise


def _is_mask_of(adata: AnnData, key: str, project: LegacyProject) -> bool:
    """Whether the mask under a key is the project's."""
    if key not in adata.varm or key not in adata.uns:
        return False
    mask = sp.csc_matrix(adata.varm[key])
    return (
        mask.shape == project.mask.shape
        and (mask != project.mask).nnz == 0
        and list(adata.uns[key]["gene_sets"]) == project.gene_sets.tolist()
    )


def _write_mask(adata: AnnData, key: str, project: LegacyProject) -> None:
    """Write the mask as :func:`tosica.pp.build_mask` writes one."""
    n_sets = len(project.gene_sets) - project.n_unannotated
    n_covered = len(np.unique(project.mask[:, :n_sets].indices))
    adata.varm[key] = project.mask.tocsr()
    adata.uns[key] = {
        "gene_sets": project.gene_sets.copy(),
        "source": _SOURCE,
        "organism": _ORGANISM,
        "release": "",
        "matched_by": "var_names",
        "n_genes_mapped": 0,
        "params": {"n_unannotated": project.n_unannotated},
        "n_unannotated": project.n_unannotated,
        "n_genes": len(project.genes),
        "n_genes_covered": n_covered,
        "coverage": n_covered / len(project.genes),
    }
