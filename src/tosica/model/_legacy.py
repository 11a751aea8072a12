"""Load the folder that the original code leaves after training.

Nothing in the folder is executed: tensors are read with ``weights_only=True``, the mask without
pickles, and tables as text.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from anndata import AnnData

from tosica._obs import UNKNOWN
from tosica._settings import logger, warn_user
from tosica._text import list_names
from tosica.data import Scale
from tosica.model._fields import ExpressionField, MaskField
from tosica.module import MLP_RATIO, REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from tosica._types import AnyPath, BoolArray
    from tosica.model._setup import SetupMixin

ModelT = TypeVar("ModelT", bound="SetupMixin")

_MASK, _GENE_SETS, _LABELS = "mask.npy", "pathway.csv", "label_dictionary.csv"
# Weights reduced over the width of a token: the only file with the names of the genes.
_GENE_WEIGHTS = "gene2token_weights.csv"
_EMBEDDING = "feature_embed.fe"
# Parts of a block: name in the original, name in the module, outputs and inputs in widths of a token.
_BLOCK = (
    ("norm1", "norm1", (1,)),
    ("attn.qkv", "attention.qkv", (3, 1)),
    ("attn.proj", "attention.proj", (1, 1)),
    ("norm2", "norm2", (1,)),
    ("mlp.fc1", "fc1", (MLP_RATIO, 1)),
    ("mlp.fc2", "fc2", (1, MLP_RATIO)),
)


class Project(NamedTuple):
    """Contents of a project folder, checked.

    ``weights`` is the name of the file of tensors; ``mask`` is ``(n_genes, n_tokens)``, bool, with
    sorted indices; ``state`` has the parameters of a :class:`~tosica.module.TOSICAModule` by name.
    """

    weights: str
    genes: list[str]
    gene_sets: list[str]
    n_unannotated: int
    mask: sp.csc_matrix
    labels: list[str]
    labels_key: str
    embed_dim: int
    n_layers: int
    state: dict[str, Tensor]


def load_legacy(
    cls: type[ModelT],
    project_dir: AnyPath,
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
    project = read_project(Path(project_dir), var_names, weights)
    if project.embed_dim % n_heads:
        raise ValueError(
            f"n_heads={n_heads} does not divide {project.embed_dim}: pass the heads it was trained with."
        )
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
    sizes = f"{len(project.genes)} genes, {len(project.gene_sets)} tokens, {len(project.labels)} labels"
    logger.info(
        "load_legacy: read %s: %s, %d layers", project.weights, sizes, project.n_layers
    )
    warn_user(
        "In a model of the original code each token mixes numbers of several gene sets, so attention under "
        "a gene set's name is what the original reported, but is not about that set alone."
    )
    return model


# ------------------------------------------------------------------ the folder


def read_project(
    folder: Path, var_names: Iterable[str] | None, weights: str | None
) -> Project:
    """Read a project folder, and check that its files belong together.

    Parameters
    ----------
    folder
        The project folder.
    var_names
        Names of the genes in the order of training; ``None`` to read them from the folder.
    weights
        Name of the file of tensors; ``None`` for that of the last epoch.

    Returns
    -------
    The project.

    Raises
    ------
    FileNotFoundError
        If the folder or a file of it is missing.
    ValueError
        If a file is damaged, has other contents than the original writes, or contradicts another.
    """
    with _reading(folder / _MASK) as path:
        mask = np.load(path, allow_pickle=False)
        is_mask = mask.ndim == 2 and bool(np.isin(mask, (0, 1)).all())
    if not (is_mask and mask.any(0).all()):
        raise _contradiction(
            _MASK, "is no matrix of 0 and 1 with a gene for each gene set"
        )
    mask = mask.astype(bool)
    _, gene_sets = _read_names(folder / _GENE_SETS)
    if len(gene_sets) != mask.shape[1]:
        raise _contradiction(
            _GENE_SETS, f"does not have the {mask.shape[1]} gene sets of {_MASK}"
        )
    labels_key, labels = _read_names(folder / _LABELS)
    if len(labels) < 2 or UNKNOWN in labels:
        raise _contradiction(_LABELS, f"has a single label, or a label {UNKNOWN!r}")
    path = _choose_weights(folder, weights)
    tensors, n_layers = _read_tensors(path, mask, len(labels))
    by_token = tensors[f"{_EMBEDDING}.weight"].unflatten(0, (len(gene_sets), -1))
    # Weights outside the mask have no effect, but the table of gene weights has them.
    has_weight = mask | (by_token != 0).any(1).T.numpy()
    columns = sp.csc_matrix(mask)
    columns.sort_indices()
    return Project(
        weights=path.name,
        genes=_read_genes(folder / _GENE_WEIGHTS, var_names, gene_sets, has_weight),
        gene_sets=gene_sets,
        n_unannotated=_count_unannotated(gene_sets, mask),
        mask=columns,
        labels=labels,
        labels_key=labels_key,
        embed_dim=by_token.shape[1],
        n_layers=n_layers,
        state=_to_state_dict(tensors, by_token, columns, n_layers),
    )


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Say in one sentence that a file is missing or damaged, whatever its reader raises."""
    if not path.is_file():
        raise FileNotFoundError(
            f"The folder {str(path.parent)!r} holds no {path.name}: pass the whole project folder."
        )
    try:
        yield path
    except Exception as error:
        raise ValueError(
            f"{str(path)!r} is damaged, or holds something else, and was not opened: copy it again."
        ) from error


def _contradiction(file: str, problem: str) -> ValueError:
    """Make the error for a file that contradicts another one of the project."""
    return ValueError(
        f"{file} {problem}: the folder is not as the original code leaves it, so copy it again."
    )


def _choose_weights(folder: Path, weights: str | None) -> Path:
    """Path of the named file, or of that of the last epoch."""
    if weights is not None:
        return folder / weights
    epochs = {}
    for path in folder.glob("model-*.pth"):
        match = re.fullmatch(r"model-(\d+)\.pth", path.name)
        if match:
            epochs[int(match[1])] = path
    return epochs[max(epochs)] if epochs else folder / "model.pth"


def _read_names(path: Path) -> tuple[str, list[str]]:
    """Read a table with a number and a name in each row: header of the names, and the names."""
    with _reading(path):
        # The header as a row and no missing values, so that names stay unchanged.
        table = pd.read_csv(path, header=None, dtype=str, na_filter=False)
        numbers, (header, *names) = table[0].tolist(), table[1].tolist()
    is_numbered = numbers[1:] == [str(i) for i in range(len(names))]
    if not is_numbered or len(set(names)) < len(names):
        raise _contradiction(path.name, "does not number different names 0, 1, 2, …")
    return str(header), names


def _read_genes(
    path: Path,
    var_names: Iterable[str] | None,
    gene_sets: list[str],
    has_weight: BoolArray,
) -> list[str]:
    """Take the names of the genes as given, or read them from the table of gene weights.

    Parameters
    ----------
    path
        The table, which the original writes when it predicts.
    var_names
        Names of the genes in the order of training. They have to agree with the table.
    gene_sets
        Names of the gene sets.
    has_weight
        Whether a gene may have a weight for a token, ``(n_genes, n_tokens)``.
    """
    table_genes: list[str] = []
    if var_names is None or path.is_file():
        if not path.is_file():
            raise FileNotFoundError(
                f"The folder {str(path.parent)!r} holds no {path.name} with the names of the genes: pass var_names."
            )
        with _reading(path):
            table_genes = (
                pd.read_csv(path, header=None, dtype=str, na_filter=False, nrows=1)
                .iloc[0, 1:]
                .tolist()
            )
            table = pd.read_csv(
                path, header=None, skiprows=1, na_filter=False, dtype={0: str}
            )
            values = table.iloc[:, 1:].to_numpy(dtype=np.float64)
        # The weights themselves may be those of another epoch.
        fits = (
            table[0].tolist() == gene_sets
            and values.shape == has_weight.T.shape
            and len(table_genes) == len(has_weight)
        )
        if not fits or values[~has_weight.T].any():
            raise _contradiction(
                path.name, f"has other genes or gene sets than {_MASK}"
            )
    genes = table_genes
    if var_names is not None:
        genes = [str(name) for name in var_names]
    duplicates = [name for name, n in Counter(genes).items() if n > 1]
    # Names that the file has twice may differ from unique var_names.
    n_in_table = Counter(table_genes)
    differ = [
        name
        for name, gene in zip(table_genes, genes, strict=False)
        if name != gene and n_in_table[name] == 1
    ]
    if duplicates or differ or len(genes) != len(has_weight):
        raise ValueError(
            f"var_names must be the {len(has_weight)} genes that the model was trained on, in their order and each "
            f"once, as a query's genes are matched by name; see {list_names(duplicates or differ or genes, 3)}."
        )
    return genes


def _count_unannotated(gene_sets: list[str], mask: BoolArray) -> int:
    """Count the fully connected tokens at the end, which the original calls "node".

    If all tokens have this name, gene sets were drawn at random, and there are none of them.
    """
    is_node = np.array([bool(re.fullmatch(r"node \d+", name)) for name in gene_sets])
    if is_node.all():
        return 0
    return int(np.argmin((is_node & mask.all(axis=0))[::-1]))


# ------------------------------------------------------------------ the weights


def _read_tensors(
    path: Path, mask: BoolArray, n_labels: int
) -> tuple[dict[str, Tensor], int]:
    """Read the tensors of a network, and its number of layers; refuse any other content."""
    with _reading(path), warnings.catch_warnings():
        # Users cannot act on the warnings of torch about old formats.
        warnings.simplefilter("ignore")
        if path.read_bytes()[:2] == b"PK":
            # torch never compresses members, and does not look at their checksums.
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() or any(
                    m.file_size > m.compress_size for m in archive.infolist()
                ):
                    raise zipfile.BadZipFile
        tensors: dict[str, Tensor] = torch.load(
            path, map_location="cpu", weights_only=True
        )
        n_layers = len(
            {m[1] for name in tensors if (m := re.match(r"blocks\.(\d+)\.", name))}
        )
        shapes = _shapes(
            tensors["cls_token"].shape[-1], max(n_layers, 1), mask.shape, n_labels
        )
        file_shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        # A view of one number may have any shape, and would take memory at the first operation.
        is_plain = all(
            t.is_floating_point()
            and t.numel() * t.element_size() <= t.untyped_storage().nbytes()
            for t in tensors.values()
        )
    differ = sorted({name for name, _ in shapes.items() ^ file_shapes.items()})
    if differ or not is_plain:
        raise _contradiction(
            path.name,
            f"has other tensors than the tables need ({list_names(differ, 3)})",
        )
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise _contradiction(path.name, "holds NaN or infinity")
    width = tensors["cls_token"].shape[-1]
    expected = torch.from_numpy(mask.T).repeat_interleave(width, 0)
    if not (tensors[f"{_EMBEDDING}.mask"] == expected).all():
        raise _contradiction(path.name, f"has another mask than {_MASK}")
    return tensors, n_layers


def _shapes(
    d: int, n_layers: int, shape: tuple[int, ...], n_labels: int
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the original, for tokens of width ``d``."""
    n_genes, n_tokens = shape
    weights = {_EMBEDDING: (n_tokens * d, n_genes), "norm": (d,), "head": (n_labels, d)}
    for i in range(n_layers):
        weights |= {
            f"blocks.{i}.{layer}": tuple(k * d for k in sizes)
            for layer, _, sizes in _BLOCK
        }
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, d),
        f"{_EMBEDDING}.mask": (n_tokens * d, n_genes),
    }
    for layer, size in weights.items():
        shapes[f"{layer}.weight"] = size
        shapes[f"{layer}.bias"] = size[:1]
    return shapes


def _to_state_dict(
    tensors: dict[str, Tensor], by_token: Tensor, mask: sp.csc_matrix, n_layers: int
) -> dict[str, Tensor]:
    """Rename tensors as in the module, and keep the embedding's weights inside the mask only.

    ``by_token`` are the embedding's weights, ``(n_tokens, embed_dim, n_genes)``.
    """
    token = torch.from_numpy(np.repeat(np.arange(mask.shape[1]), np.diff(mask.indptr)))
    gene = torch.from_numpy(mask.indices.astype(np.int64))
    state = {
        "embedding.weight": by_token[token, :, gene],
        "embedding.bias": tensors[f"{_EMBEDDING}.bias"].reshape(by_token.shape[:2]),
        "encoder.class_token": tensors["cls_token"].flatten(),
    }
    names = {"norm": "encoder.norm", "head": "head"}
    for i in range(n_layers):
        names |= {
            f"blocks.{i}.{original}": f"encoder.blocks.{i}.{layer}"
            for original, layer, _ in _BLOCK
        }
    for original, layer in names.items():
        state[f"{layer}.weight"] = tensors[f"{original}.weight"]
        state[f"{layer}.bias"] = tensors[f"{original}.bias"]
    return state


# ------------------------------------------------------------------ the model


def _make_registry(
    cls: type[ModelT], project: Project, target_sum: float
) -> dict[str, Any]:
    """Registry that ``setup_anndata`` would have made from the project's reference."""
    # The smallest AnnData with the project's genes, labels and mask: two cells a label.
    codes = np.repeat(np.arange(len(project.labels)), 2)
    # Counts, whose scale needs no guess; cells that are all equal would be refused.
    first_gene = (
        np.arange(1, len(codes) + 1),
        (np.arange(len(codes)), np.zeros(len(codes), int)),
    )
    reference = AnnData(
        sp.csr_matrix(first_gene, (len(codes), len(project.genes)), np.float32)
    )
    reference.var_names = pd.Index(project.genes)
    reference.obs[project.labels_key] = pd.Categorical.from_codes(
        codes, pd.Index(project.labels)
    )
    _write_mask(reference, "tosica_mask", project)
    cls.setup_anndata(reference, labels_key=project.labels_key)
    manager = cls._get_most_recent_anndata_manager(reference, required=True)
    # scvi-tools keeps every manager for further models of the same data. There will be none.
    del cls._setup_adata_manager_store[manager.adata_uuid]
    fields = manager.registry["field_registries"]
    # The original uses expression as it is: usually normalized over all genes, and then subset.
    scale = Scale("log1p", float(target_sum), "matrix")
    fields[REGISTRY_KEYS.X_KEY]["state_registry"][ExpressionField.SCALE_KEY] = (
        scale._asdict()
    )
    fields[REGISTRY_KEYS.X_KEY]["summary_stats"]["n_cells"] = 0
    fields[REGISTRY_KEYS.MASK_KEY]["state_registry"][MaskField.MIXED_KEY] = True
    return manager.registry


def _setup_reference(
    cls: type[ModelT], adata: AnnData, project: Project, registry: dict[str, Any]
) -> None:
    """Set up a reference to go on training with. If it does not fit, it stays unchanged."""
    if list(adata.var_names) != project.genes:
        raise ValueError(
            "adata's var_names are not the legacy model's genes in its order: take adata[:, model.get_var_names()]."
        )
    key = registry["setup_args"]["mask_key"]
    exists = key in adata.varm or key in adata.uns
    if exists and not _has_mask(adata, key, project):
        raise ValueError(
            f"adata.varm[{key!r}] and adata.uns[{key!r}] do not hold the legacy mask: delete both."
        )
    if not exists:
        _write_mask(adata, key, project)
    try:
        cls._setup_from_registry(adata, registry)
    except BaseException:
        if not exists:
            del adata.varm[key], adata.uns[key]
        raise


def _has_mask(adata: AnnData, key: str, project: Project) -> bool:
    """Whether the mask under a key is the project's."""
    if (
        key not in adata.varm
        or key not in adata.uns
        or list(adata.uns[key]["gene_sets"]) != project.gene_sets
    ):
        return False
    mask = sp.csc_matrix(adata.varm[key])
    return mask.shape == project.mask.shape and (mask != project.mask).nnz == 0


def _write_mask(adata: AnnData, key: str, project: Project) -> None:
    """Write the mask as :func:`tosica.pp.build_mask` writes one."""
    adata.varm[key] = project.mask.tocsr()
    adata.uns[key] = {
        "gene_sets": np.array(project.gene_sets, dtype=object),
        "source": "legacy project",
        "organism": "unknown",
        "n_unannotated": project.n_unannotated,
        "n_genes": len(project.genes),
    }
