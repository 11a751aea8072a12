"""Save and load a model, as tensors and plain values; nothing in a file is executed."""

from __future__ import annotations

import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import pandas as pd
import torch
from scvi.data import AnnDataManager

from tosica._files import as_os_error, find_model, is_temporary, replace_file
from tosica._text import parameter
from tosica._validate import Names, Number, validate_params
from tosica.model._device import ACCELERATOR, DEVICE, find_device, is_rank_zero
from tosica.model._legacy import load_legacy
from tosica.model._setup import SetupMixin
from tosica.model._training_result import SCVI_ATTRS, TrainingResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from anndata import AnnData

    from tosica._types import AnnOrMuData, AnyPath


MODEL_FILE = "model.pt"
# Names under which scvi-tools saves them too.
_STATE, _VAR_NAMES, _ATTRIBUTES = "model_state_dict", "var_names", "attr_dict"


class SaveLoadMixin(SetupMixin):
    """Saving and loading, without running anything that a file may hold."""

    @validate_params()
    def save(
        self,
        dir_path: AnyPath,
        prefix: str | None = None,
        overwrite: bool = False,
        save_anndata: bool = False,
        **anndata_write_kwargs: Any,
    ) -> None:
        """Save the model to a folder, by default without the reference.

        The folder is laid out as scvi-tools lays it out. It holds tensors and plain values only.
        An untrained model can be saved as well, and is untrained when it is loaded. If several
        processes have trained the model, the first one saves it, and for the others this does
        nothing.

        Each file is replaced whole: if the process is killed, it is the old one or the new one.
        With ``save_anndata`` the reference is replaced before the model. What a killed process
        leaves begins with ``.tosica-`` and may be deleted.

        Parameters
        ----------
        dir_path
            Folder to make.
        prefix
            Put in front of the file names.
        overwrite
            Write into a folder that exists.
        save_anndata
            Also save the reference, as ``adata.h5ad`` or ``mdata.h5mu``.
        **anndata_write_kwargs
            Passed to :meth:`anndata.AnnData.write_h5ad` or :meth:`mudata.MuData.write_h5mu`.

        Raises
        ------
        TypeError
            If an argument is of the wrong type.
        FileExistsError
            If the folder exists and is not empty, and ``overwrite`` is false.
        OSError
            If a file cannot be written. Files that were there are unchanged.
        ValueError
            If the reference is to be saved and there is none, or if weights are not finite.
        """
        if not is_rank_zero(self):
            return
        folder = Path(dir_path)
        if folder.is_file():
            raise FileExistsError(f"{str(folder)!r} is a file: choose another folder.")
        # A killed process may have left something here.
        is_free = not folder.exists() or (
            folder.is_dir() and all(map(is_temporary, folder.iterdir()))
        )
        if not (overwrite or is_free):
            raise FileExistsError(
                f"{str(folder)!r} exists: choose another folder, or pass {parameter('overwrite', True)}."
            )
        if save_anndata and self.adata is None:
            raise ValueError(
                "save_anndata=True was given, but the model has no reference."
            )
        not_finite = self.module.find_not_finite()
        if not_finite is not None:
            raise ValueError(
                f"The model has weights that are not finite ({not_finite}) and is not saved: train a new one."
            )
        attributes = {
            "registry_": self.registry_,
            "init_params_": self.init_params_,
            "ontology_term_ids_": self.ontology_term_ids_,
            "label_parents_": self.label_parents_,
            "training_": self.training_.to_dict(),
            "starts_from_network": self._starts_from_network,
        }
        for name in SCVI_ATTRS:
            attributes[name] = getattr(self, name, None)
        folder.mkdir(parents=True, exist_ok=True)
        if save_anndata:
            adata = self.adata
            own_file = adata.filename if adata.isbacked else None
            name = "adata.h5ad"
            if self.modalities[0].name is not None:
                name = "mdata.h5mu"
            with replace_file(folder / f"{prefix or ''}{name}") as path:
                try:
                    adata.write(path, **anndata_write_kwargs)
                finally:
                    if own_file is not None:
                        adata.file.filename = own_file
        contents = {
            _STATE: self.module.state_dict(),
            _VAR_NAMES: self.tokens.var_names,
            _ATTRIBUTES: attributes,
        }
        write_plain(to_plain(contents), folder / f"{prefix or ''}{MODEL_FILE}")

    @classmethod
    @validate_params(accelerator=ACCELERATOR, device=DEVICE)
    def load(
        cls,
        dir_path: AnyPath,
        adata: AnnOrMuData | None = None,
        accelerator: str = "auto",
        device: int | str = "auto",
        prefix: str | None = None,
    ) -> Self:
        """Load a model; no reference is needed, and nothing in the file is executed.

        Parameters
        ----------
        dir_path
            Folder that :meth:`save` made, or ``"blood"`` for the model of human blood that comes
            with the package.
        adata
            A reference to go on training with: the same genes, in the same order.
        accelerator, device
            Where to put the model: "cpu", "gpu", or by default an accelerator if there is one.
        prefix
            Prefix that the model was saved with.

        Returns
        -------
        The model.

        Raises
        ------
        TypeError
            If an argument is of the wrong type.
        FileNotFoundError
            If the folder or a file of it is missing.
        ValueError
            If the file is damaged, holds more than tensors and plain values, or a model of another
            class; if ``adata`` does not fit the model.
        """
        torch_device = find_device(accelerator, device)
        path = find_model(dir_path) / f"{prefix or ''}{MODEL_FILE}"
        contents = read_plain(path)
        with refuse_other_versions(path):
            attributes = contents[_ATTRIBUTES]
            registry = restore_registry(attributes["registry_"])
            class_name = registry["model_name"]
            parameters = attributes["init_params_"]["non_kwargs"]
        if class_name != cls.__name__:
            raise ValueError(
                f"{str(dir_path)!r} holds a {class_name} model, not a {cls.__name__} model."
            )
        if adata is not None:
            cls._setup_from_registry(adata, registry)
        with refuse_other_versions(path):
            own_registry = registry if adata is None else None
            # A new model draws weights, which are replaced.
            with torch.random.fork_rng(devices=[], enabled=adata is None):
                model = cls(adata, own_registry, **parameters)
            model.module.load_state_dict(contents[_STATE])
            model._restore_attributes(attributes)
        model.module.to(torch_device).eval()
        return model

    def _restore_attributes(self, attributes: dict[str, Any]) -> None:
        """Set the attributes that a file holds beside the weights and the registry."""
        self.training_ = TrainingResult.from_dict(to_arrays(attributes["training_"]))
        # Models that were saved by earlier versions do not have it.
        self._starts_from_network = bool(attributes.get("starts_from_network", False))
        for name in SCVI_ATTRS:
            setattr(self, name, to_arrays(attributes[name]))
        if self.history_ is not None:
            self.history_ = {
                name: pd.DataFrame(
                    table["columns"], index=pd.Index(table["index"], name="epoch")
                )
                for name, table in self.history_.items()
            }
        terms = attributes["ontology_term_ids_"]
        for label, term in terms.items():
            if label not in self.labels or not isinstance(term, str):
                raise ValueError("The terms of the labels are not those of a model.")
        # Not by the attribute: another release of the ontology may have had other terms.
        self._term_of_label = dict(terms)
        # Also if there are none: those of the levels may have been taken away.
        self.label_parents_ = attributes["label_parents_"]

    @classmethod
    @validate_params(
        var_names=Names(optional=True),
        target_sum=Number(above=0),
        accelerator=ACCELERATOR,
        device=DEVICE,
    )
    def load_legacy(
        cls,
        project_dir: AnyPath,
        var_names: Sequence[str] | None = None,
        *,
        n_heads: int = 4,
        weights: str | None = None,
        labels_key: str | None = None,
        target_sum: float = 1e4,
        adata: AnnData | None = None,
        accelerator: str = "auto",
        device: int | str = "auto",
    ) -> Self:
        """Open the folder that the original code leaves after training.

        The model gives the numbers that the original gives. Nothing in the folder is executed.
        Width, layers and labels are read from the tensors, which are held against the tables.

        In the original a token is not the gene set that it is named after: it mixes numbers of
        several. The model keeps that, because its weights were trained that way; so the attention
        under a gene set's name is what the original reported, but is not about that set alone.
        :meth:`get_gene_weights` is about the set. A model trained anew has tokens that are gene
        sets.

        Parameters
        ----------
        project_dir
            The project folder: ``mask.npy``, ``pathway.csv``, ``label_dictionary.csv``,
            ``model-<epoch>.pth`` or ``model.pth``, and ``gene2token_weights.csv`` if the original
            has predicted with it.
        var_names
            Names of the genes, in the order of the data that the original was trained on. By
            default they are read from ``gene2token_weights.csv``, the only file that has them.
        n_heads
            Number of attention heads that the original was trained with, which its files do not
            tell.
        weights
            Name of the file with the weights. By default that of the last epoch.
        labels_key
            Column of ``adata.obs`` with the labels. By default the one that
            ``label_dictionary.csv`` names.
        target_sum
            Total that a cell's counts are scaled to, over all genes of a query, if the query holds
            counts. The original takes log-normalized expression as it is, and so does the model.
        adata
            A reference to go on training with: log-normalized, with the same genes in the same
            order. The model's mask is written to ``adata.varm["tosica_mask"]`` and
            ``adata.uns["tosica_mask"]`` if nothing is there, as :func:`tosica.pp.build_mask`
            would; :meth:`load` needs it there too.
        accelerator, device
            Where to put the model, as in :meth:`load`.

        Returns
        -------
        The model, trained.

        Raises
        ------
        FileNotFoundError
            If the folder or a file of it is missing, or no file has the names of the genes.
        ValueError
            If the weights are damaged, hold more than tensors, other tensors than the original's,
            NaN or infinity; if the tables contradict the tensors; if a gene set has no gene; if
            ``n_heads`` does not divide the width; if genes occur twice; if ``adata`` does not fit.
        KeyError
            If ``adata.obs`` has no column ``labels_key``.
        TypeError
            If an argument is of the wrong type.

        Warns
        -----
        UserWarning
            Always: that tokens mix gene sets.

        Examples
        --------
        .. code-block:: python

            model = tosica.TOSICA.load_legacy("my_project")
            model.annotate(query)
            model.save("my_model")
        """
        return load_legacy(
            cls,
            project_dir,
            var_names,
            n_heads=n_heads,
            weights=weights,
            labels_key=labels_key,
            target_sum=target_sum,
            adata=adata,
            device=find_device(accelerator, device),
        )

    @classmethod
    def convert_legacy_save(cls, *_: Any, **__: Any) -> NoReturn:
        """Refuse: scvi-tools' conversion of its old files runs what they hold."""
        raise NotImplementedError(
            "No tosica model is in the old format of scvi-tools: use load or load_legacy."
        )

    @staticmethod
    @validate_params()
    def load_registry(dir_path: AnyPath, prefix: str | None = None) -> dict[str, Any]:
        """Read what :meth:`setup_anndata` registered for a saved model, as safely as :meth:`load`.

        Parameters
        ----------
        dir_path, prefix
            As in :meth:`load`.

        Returns
        -------
        The registry.

        Raises
        ------
        TypeError, FileNotFoundError, ValueError
            As :meth:`load`.
        """
        folder = find_model(dir_path)
        contents = read_plain(folder / f"{prefix or ''}{MODEL_FILE}")
        with refuse_other_versions(folder):
            return restore_registry(contents[_ATTRIBUTES]["registry_"])

    @staticmethod
    @validate_params()
    def view_setup_args(dir_path: AnyPath, prefix: str | None = None) -> None:
        """Print the arguments that :meth:`setup_anndata` was called with for a saved model.

        Parameters
        ----------
        dir_path, prefix
            As in :meth:`load`.

        Raises
        ------
        TypeError, FileNotFoundError, ValueError
            As :meth:`load`.
        """
        AnnDataManager.view_setup_method_args(
            SaveLoadMixin.load_registry(dir_path, prefix)
        )


# ------------------------------------------------------------------------------- the file


def write_plain(contents: dict[str, Any], path: Path) -> None:
    """Write tensors and plain values to a file, a zip archive with a checksum for each member.

    Raises
    ------
    OSError
        If it cannot be written. A file that was there is unchanged.
    """
    with replace_file(path) as temporary, as_os_error():
        torch.save(contents, temporary)


def read_plain(path: Path) -> dict[str, Any]:
    """Read a file of :func:`write_plain`, without executing anything.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged, or holds anything but tensors and plain values.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"The folder {str(path.parent)!r} holds no {path.name}, so it is no saved model."
        )
    # The unpickler may raise anything on bytes that are something else.
    try:
        # Torch does not look at the checksums.
        with zipfile.ZipFile(path) as archive:
            is_whole = archive.testzip() is None
        contents = dict(torch.load(path, map_location="cpu", weights_only=True))
        # A view of one number may have any shape, and would need any amount of memory.
        is_whole &= all(tensor.is_contiguous() for tensor in _tensors(contents))
    except Exception as error:
        raise ValueError(
            f"{str(path)!r} is damaged, or no saved model, and nothing in it was executed: copy or save it again."
        ) from error
    if not is_whole:
        raise ValueError(f"{str(path)!r} is damaged: copy or save the model again.")
    return contents


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested dicts and lists."""
    match value:
        case torch.Tensor():
            yield value
        case dict():
            yield from _tensors(list(value.values()))
        case list() | tuple():
            for element in value:
                yield from _tensors(element)


def to_arrays(value: Any) -> Any:
    """Turn tensors into arrays, in nested dicts."""
    match value:
        case torch.Tensor():
            return value.numpy()
        case dict():
            return {key: to_arrays(element) for key, element in value.items()}
    return value


def to_plain(value: Any) -> Any:
    """Turn arrays into tensors or lists, and tables into dicts, recursively."""
    match value:
        # Before float and str, because some numpy scalars are subclasses of these.
        case np.generic():
            return value.item()
        case None | bool() | int() | float() | str():
            return value
        case torch.Tensor():
            return value.contiguous()
        case np.ndarray() if value.dtype.kind in "biuf":
            return torch.from_numpy(np.array(value, order="C"))
        case np.ndarray() | pd.Index():
            return [to_plain(item) for item in value.tolist()]
        case pd.DataFrame():
            return {
                "index": to_plain(value.index),
                "columns": to_plain(value.to_dict("list")),
            }
        case dict():
            return {str(key): to_plain(item) for key, item in value.items()}
        case list() | tuple() | set():
            return [to_plain(item) for item in value]
    raise TypeError(f"A saved model cannot hold a {type(value).__name__}.")


@contextmanager
def refuse_other_versions(path: Path) -> Iterator[None]:
    """Refuse a file that is whole, but has other contents than a model of this version."""
    try:
        yield
    # Contents that are missing or of another type raise many kinds of errors.
    except (AttributeError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{str(path)!r} holds no model of this version of tosica: train it again."
        ) from error


def restore_registry(registry: dict[str, Any]) -> dict[str, Any]:
    """Turn tensors and lists of a saved registry back into the arrays of the fields."""
    for field in registry["field_registries"].values():
        state = field["state_registry"]
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                state[key] = value.cpu().numpy()
            elif key in ("categorical_mapping", "column_names", "gene_sets", "labels"):
                state[key] = np.array(value, dtype=object)
    return registry
