"""Save and load a model, as tensors and plain values with a digest; nothing in a file is executed."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import pandas as pd
import torch
from scvi.data import AnnDataManager

from tosica._checks import Names, Number, validate_params
from tosica._files import as_os_error, find_model, is_temporary, replace_file
from tosica._text import parameter
from tosica.linear import (
    Adaptation,
    CrossValidated,
    NoveltyStatistics,
    RegressionConfig,
)
from tosica.model._device import ACCELERATOR, DEVICE, find_device, is_rank_zero
from tosica.model._legacy import load_legacy
from tosica.model._setup import SetupMixin
from tosica.model._training_result import SCVI_ATTRS, TrainingResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from anndata import AnnData
    from mudata import MuData


MODEL_FILE = "model.pt"
# Names under which scvi-tools saves them too.
_STATE, _VAR_NAMES, _ATTRIBUTES = "model_state_dict", "var_names", "attr_dict"
_DIGEST = "digest"


class SaveLoadMixin(SetupMixin):
    """Saving and loading, without running anything that a file may hold."""

    @validate_params()
    def save(
        self,
        dir_path: str | Path,
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
        wrong = self.module.find_not_finite()
        if wrong is not None:
            raise ValueError(
                f"The model has weights that are not finite ({wrong}) and is not saved: train a new one."
            )
        attributes = {
            "registry_": self.registry_,
            "init_params_": self.init_params_,
            "ontology_term_ids_": self.ontology_term_ids_,
            "label_parents_": self.label_parents_,
            "training_": _describe_training(self.training_),
            **{name: getattr(self, name, None) for name in SCVI_ATTRS},
        }
        folder.mkdir(parents=True, exist_ok=True)
        if save_anndata:
            self._save_reference(folder, prefix or "", anndata_write_kwargs)
        contents = {
            _STATE: self.module.state_dict(),
            _VAR_NAMES: self.tokens.var_names,
            _ATTRIBUTES: attributes,
        }
        write_plain(to_plain(contents), folder / f"{prefix or ''}{MODEL_FILE}")

    def _save_reference(
        self, folder: Path, prefix: str, arguments: dict[str, Any]
    ) -> None:
        """Write the reference, which stays with its own file if it is backed."""
        joint, adata = self.modalities[0].name is not None, self.adata
        before = adata.filename if adata.isbacked else None
        with replace_file(
            folder / f"{prefix}{'mdata.h5mu' if joint else 'adata.h5ad'}"
        ) as path:
            try:
                (adata.write_h5mu if joint else adata.write_h5ad)(path, **arguments)
            finally:
                if before is not None:
                    adata.file.filename = before

    @classmethod
    @validate_params(accelerator=ACCELERATOR, device=DEVICE)
    def load(
        cls,
        dir_path: str | Path,
        adata: AnnData | MuData | None = None,
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
        where = find_device(accelerator, device)
        path = find_model(dir_path) / f"{prefix or ''}{MODEL_FILE}"
        contents = read_plain(path)
        with refuse_other_versions(path):
            attributes = contents[_ATTRIBUTES]
            registry = restore_registry(attributes["registry_"])
            name, parameters = (
                registry["model_name"],
                attributes["init_params_"]["non_kwargs"],
            )
        if name != cls.__name__:
            raise ValueError(
                f"{str(dir_path)!r} holds a {name} model, not a {cls.__name__} model."
            )
        if adata is not None:
            cls._setup_from_registry(adata, registry)
        with refuse_other_versions(path):
            model = cls(
                adata, registry=None if adata is not None else registry, **parameters
            )
            model.module.load_state_dict(contents[_STATE])
            training: dict[str, Any] = {
                k: v.numpy() if torch.is_tensor(v) else v
                for k, v in attributes["training_"].items()
                # Files of earlier versions have a certificate.
                if k != "certificate"
            }
            if training["novelty_statistics"] is not None:
                training["novelty_statistics"] = _restore_novelty(
                    training["novelty_statistics"]
                )
            training |= _restore_fits(training)
            model.training_ = TrainingResult(**training)
            for name in SCVI_ATTRS:
                value = attributes[name]
                setattr(model, name, value.numpy() if torch.is_tensor(value) else value)
            if model.history_ is not None:
                model.history_ = {
                    name: pd.DataFrame(
                        table["columns"], index=pd.Index(table["index"], name="epoch")
                    )
                    for name, table in model.history_.items()
                }
            terms, parents = (
                attributes["ontology_term_ids_"],
                attributes["label_parents_"],
            )
            if not all(
                label in model.labels and isinstance(term, str)
                for label, term in terms.items()
            ):
                raise ValueError("The terms of the labels are not those of a model.")
            # Not by the attribute: another release of the ontology may have had other terms.
            model._term_of_label = dict(terms)
            if parents:
                model.label_parents_ = parents
        model.module.to(where).eval()
        return model

    @classmethod
    @validate_params(
        var_names=Names(optional=True),
        target_sum=Number(above=0),
        accelerator=ACCELERATOR,
        device=DEVICE,
    )
    def load_legacy(
        cls,
        project_dir: str | Path,
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
            counts. The original takes log-normalised expression as it is, and so does the model.
        adata
            A reference to go on training with: log-normalised, with the same genes in the same
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
    def load_registry(
        dir_path: str | Path, prefix: str | None = None
    ) -> dict[str, Any]:
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
        contents = read_plain(Path(dir_path) / f"{prefix or ''}{MODEL_FILE}")
        with refuse_other_versions(Path(dir_path)):
            return restore_registry(contents[_ATTRIBUTES]["registry_"])

    @staticmethod
    @validate_params()
    def view_setup_args(dir_path: str | Path, prefix: str | None = None) -> None:
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
    """Write tensors and plain values to a file, with a digest of them.

    Raises
    ------
    OSError
        If it cannot be written. What was there before is unchanged.
    """
    with replace_file(path) as temporary, as_os_error():
        torch.save(contents | {_DIGEST: digest(contents)}, temporary)


def read_plain(path: Path) -> dict[str, Any]:
    """Read what :func:`write_plain` wrote, without executing anything.

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
    with path.open("rb") as file:
        # The unpickler may raise anything on bytes that are something else.
        try:
            contents = torch.load(file, map_location="cpu", weights_only=True)
            is_whole = contents.pop(_DIGEST) == digest(contents)
        except Exception as error:
            raise ValueError(
                f"{str(path)!r} is damaged, or no saved model, and nothing in it was executed: copy or save it again."
            ) from error
    if not is_whole:
        raise ValueError(f"{str(path)!r} is damaged: copy or save the model again.")
    return dict(contents)


def _describe_training(training: TrainingResult) -> dict[str, Any]:
    """Turn the results of a training into dicts."""
    described = asdict(training)
    if training.regression is not None:
        described["regression"] = training.regression._asdict() | {
            "config": asdict(training.regression.config)
        }
    return described


def _restore_novelty(saved: dict[str, Any]) -> NoveltyStatistics:
    """Make statistics of novelty; earlier versions saved more, and named two otherwise."""
    arrays = {name: np.asarray(values) for name, values in saved.items()}
    for old_name, name in (
        ("cells", "reference_scores"),
        ("cells_labels", "reference_nearest"),
    ):
        if old_name in arrays:
            arrays[name] = arrays.pop(old_name)
    return NoveltyStatistics(
        **{field.name: arrays[field.name] for field in fields(NoveltyStatistics)}
    )


def _restore_fits(training: dict[str, Any]) -> dict[str, Any]:
    """Make the penalties and the adaptation of a saved training, which files of earlier versions lack."""
    restored: dict[str, Any] = {"regression": None, "adaptation": None}
    if regression := training.get("regression"):
        config = RegressionConfig(**regression["config"])
        restored["regression"] = CrossValidated(**{**regression, "config": config})
    if adaptation := training.get("adaptation"):
        values: dict[str, Any] = {
            k: v.numpy() if torch.is_tensor(v) else v for k, v in adaptation.items()
        }
        restored["adaptation"] = Adaptation(**values)
    return restored


def digest(contents: Any) -> str:
    """Hash tensors and plain values; anything else raises a TypeError."""
    hasher, rest = hashlib.sha256(), [contents]
    while rest:
        match value := rest.pop():
            case torch.Tensor():
                # A view of one number may have any shape, and would need any amount of memory.
                if not value.is_contiguous():
                    raise TypeError("A tensor is not contiguous.")
                hasher.update(f"{value.dtype} {tuple(value.shape)} ".encode())
                hasher.update(value.detach().cpu().numpy().tobytes())
            case dict():
                hasher.update(f"dict {len(value)} ".encode())
                rest += [
                    item
                    for key in sorted(value, key=str, reverse=True)
                    for item in (value[key], key)
                ]
            case list() | tuple():
                hasher.update(f"list {len(value)} ".encode())
                rest += reversed(value)
            case _:
                text = f"{type(value).__name__} {value!r}"
                hasher.update(f"{len(text)} {text} ".encode())
    return hasher.hexdigest()


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
    """Say that a file that is whole is not of this version, if its contents are not those of a model."""
    try:
        yield
    # What is missing or of another type shows in many ways.
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
