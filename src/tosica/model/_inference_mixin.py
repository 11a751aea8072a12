"""Run the network over a query: latent representation, attention, minibatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from mudata import MuData

from tosica._progress import progress
from tosica._threads import thread_map, thread_pool
from tosica._validation import check_choice, check_count, check_data, check_flags
from tosica.model._device import check_device, multiplies_bfloat16
from tosica.model._modalities import is_joint
from tosica.model._query import Query
from tosica.model._registry_mixin import RegistryMixin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from anndata import AnnData

    from tosica.model._query import Minibatch

Precision = Literal["32-true", "bf16-mixed"]
# The first fits the cache of a CPU, the second occupies an accelerator.
_BATCH_SIZE_CPU, _BATCH_SIZE_ACCELERATOR = 64, 512


class InferenceMixin(RegistryMixin):
    """Latent representation and attention of the cells of a query."""

    def get_latent_representation(
        self,
        adata: AnnData | MuData | None = None,
        indices: Sequence[int] | None = None,
        batch_size: int | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
    ) -> np.ndarray:
        """Get the class token, from which the network predicts labels.

        Parameters
        ----------
        adata, indices, batch_size, layer, use_raw
            As in :meth:`predict`.

        Returns
        -------
        Shape ``(n_obs, embed_dim)``, float32.
        """
        adata = self._query(adata, indices)
        return self._infer(adata, ("latent",), layer=layer, use_raw=use_raw, batch_size=batch_size)[
            "latent"
        ]

    def get_attention(
        self,
        adata: AnnData | MuData | None = None,
        indices: Sequence[int] | None = None,
        batch_size: int | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        unannotated: bool = False,
    ) -> pd.DataFrame:
        """Get the attention of the class token to each gene set (attention rollout).

        Parameters
        ----------
        adata, indices, batch_size, layer, use_raw
            As in :meth:`predict`.
        unannotated
            Also return the unannotated tokens, which have every gene, as the last columns.

        Returns
        -------
        Table ``(n_obs, n_gene_sets)``, float32. With unannotated tokens and the class token's
        attention to itself, each row sums to one.
        """
        adata = self._query(adata, indices)
        found = self._infer(
            adata,
            ("attention",),
            layer=layer,
            use_raw=use_raw,
            batch_size=batch_size,
            unannotated=unannotated,
        )
        names = np.array(self._tokens.names, dtype=object)[found["tokens"]]
        return pd.DataFrame(found["attention"], index=adata.obs_names, columns=names)

    def iter_batches(
        self,
        adata: AnnData | MuData | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        batch_size: int | None = None,
    ) -> Iterator[Minibatch]:
        """Iterate over a query as the network reads it: the model's genes, normalized.

        Parameters
        ----------
        adata
            The query; by default the reference.
        layer, use_raw, batch_size
            As in :meth:`annotate`.

        Yields
        ------
        start
            Position of the minibatch's first cell in ``adata``.
        x
            Normalized expression, shape ``(n_cells, n_genes)``, float32, on the model's device.
            Genes are those of :meth:`get_var_names`, in their order; ones that the query lacks are
            zero.
        measured
            Shape ``(n_genes,)``, bool: whether the query has a gene. ``None`` if it has all.

        Raises
        ------
        RuntimeError, TypeError, ValueError
            As :meth:`annotate`.

        Examples
        --------
        >>> import scanpy as sc
        >>> import tosica
        >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> adata.obs_names_make_unique()
        >>> tosica.pp.build_mask(adata, max_gene_sets=20)
        >>> tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
        >>> model = tosica.TOSICA(adata, embed_dim=16)
        >>> model.train(max_epochs=2, enable_progress_bar=False)
        >>> [(batch.start, tuple(batch.x.shape)) for batch in model.iter_batches(batch_size=500)]
        [(0, (500, 765)), (500, (200, 765))]
        """
        check_flags(use_raw=use_raw)
        adata = self._query(adata)
        return iter(self._minibatches(adata, layer, use_raw, batch_size))

    def to_device(self, device: str | int | torch.device) -> None:
        """Move the model to a CPU or a GPU, where it then annotates.

        Parameters
        ----------
        device
            ``"cpu"``, ``"cuda"``, ``"cuda:0"`` and so on, the number of a GPU, or a device of
            torch. To choose it when a model is loaded, see :meth:`load`.

        Raises
        ------
        TypeError
            If it is of another type.
        ValueError
            If torch does not know it, or finds no such GPU.

        Examples
        --------
        >>> import scanpy as sc
        >>> import tosica
        >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> adata.obs_names_make_unique()
        >>> tosica.pp.build_mask(adata, max_gene_sets=20)
        >>> tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
        >>> model = tosica.TOSICA(adata, embed_dim=16)
        >>> model.to_device("cpu")
        >>> model.device
        device(type='cpu')
        """
        super().to_device(check_device(device))

    def _query(
        self, adata: AnnData | MuData | None, indices: Sequence[int] | None = None
    ) -> AnnData | MuData:
        self._check_if_trained(
            warn=False,
            message="The model is not trained: call model.train() first, or load a trained one.",
        )
        if adata is None:
            adata = self.adata
        if adata is None:
            raise ValueError("The model was loaded without a reference: pass the query as adata.")
        joint = is_joint(self.registry_)
        if isinstance(adata, MuData) and not joint:
            raise TypeError(
                "adata must be an AnnData, as the model's reference was, not a MuData: pass one "
                f"modality of it, as in mdata[{next(iter(adata.mod), 'rna')!r}]."
            )
        check_data(adata, mudata=joint)
        if indices is None:
            return adata
        _check_indices(indices, adata.n_obs)
        return adata[indices]

    @torch.inference_mode()
    def _infer(
        self,
        adata: AnnData | MuData,
        wanted: tuple[str, ...],
        *,
        layer: str | Mapping[str, str] | None,
        use_raw: bool,
        batch_size: int | None,
        precision: Precision = "32-true",
        unannotated: bool = False,
        sample: AnnData | None = None,
        bar: str | None = "query",
    ) -> dict[str, Any]:
        """Run the network over all cells once and collect the outputs named in ``wanted``.

        The result also has ``"tokens"``, the positions of the attention's columns among the tokens,
        and ``"modalities"``, the positions of the modalities that the query has. If ``adata`` is a
        part of a query, ``sample`` has cells from all over that query. ``bar`` is what the progress
        bar says before its figures, or ``None`` for no bar.
        """
        check_choice("precision", precision, get_args(Precision))
        check_flags(use_raw=use_raw, unannotated=unannotated)
        device = self.module.device
        rounds = precision == "bf16-mixed" and multiplies_bfloat16(device)
        query = self._minibatches(adata, layer, use_raw, batch_size, sample)
        tokens = self._tokens
        present = tokens.tokens_of(query.modalities)
        # Unannotated tokens come last.
        n_sets = len(present) if unannotated else int((present < tokens.n_gene_sets).sum())
        found: dict[str, Any] = {"tokens": present[:n_sets], "modalities": query.modalities}

        def annotate(minibatch: Minibatch) -> tuple[int, dict[str, np.ndarray]]:
            with torch.autocast(device.type, torch.bfloat16, enabled=rounds):
                output = self.module.annotate(
                    minibatch.x,
                    attention="attention" in wanted,
                    modalities=query.modalities,
                    measured=minibatch.measured,
                )
            values = {
                "latent": output.latent,
                "probabilities": self.module.probabilities(output.logits, query.modalities),
            }
            if "novelty" in wanted and self.novelty_statistics_ is not None:
                measured = minibatch.measured
                scores, _ = self.novelty_statistics_.score_cells(
                    minibatch.x.cpu().numpy(), None if measured is None else measured.cpu().numpy()
                )
                values["novelty"] = torch.from_numpy(scores[:, None])
            if output.attention is not None:
                values["attention"] = output.attention[:, :n_sets]
            return minibatch.start, {name: values[name].float().cpu().numpy() for name in wanted}

        with thread_pool(device), progress(adata.n_obs, bar or "", enabled=bar is not None) as step:
            for start, parts in thread_map(annotate, query):
                for name, part in parts.items():
                    _check_finite(name, part)
                    if name not in found:
                        found[name] = np.empty((adata.n_obs, part.shape[1]), dtype=np.float32)
                    found[name][start : start + len(part)] = part
                step.update(len(part))
        return found

    def _minibatches(
        self,
        adata: AnnData | MuData,
        layer: str | Mapping[str, str] | None,
        use_raw: bool,
        batch_size: int | None,
        sample: AnnData | None = None,
    ) -> Query:
        """Cells as the network reads them, in minibatches of a size that suits the device."""
        device = self.module.device
        if batch_size is None:
            batch_size = _BATCH_SIZE_CPU if device.type == "cpu" else _BATCH_SIZE_ACCELERATOR
        check_count("batch_size", batch_size)
        return Query(
            adata,
            self._modalities,
            layer=layer,
            use_raw=use_raw,
            batch_size=batch_size,
            device=device,
            sample=sample,
        )


def _check_indices(indices: Sequence[int], n_obs: int) -> None:
    """Refuse what are no positions of cells."""
    if isinstance(indices, slice):
        return
    array = np.asarray(indices)
    is_mask = array.dtype == bool
    if array.ndim != 1 or (array.size and not is_mask and array.dtype.kind not in "iu"):
        raise TypeError(
            f"indices must be positions of cells, as a list of whole numbers, not {indices!r:.60}."
        )
    if is_mask and len(array) != n_obs:
        raise ValueError(
            f"indices has {len(array)} booleans for {n_obs} cells: give one a cell, or positions."
        )
    if array.size and not is_mask and not (-n_obs <= array.min() and array.max() < n_obs):
        raise IndexError(f"indices must be positions of the {n_obs} cells, from 0 to {n_obs - 1}.")


def _check_finite(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise ValueError(
            f"The model gives cells no {name} that are numbers (NaN or infinity), so that its "
            "weights are spoilt, as by a training that diverged: train a new model, with a smaller "
            "plan_kwargs={'lr': ...} if it was raised."
        )
