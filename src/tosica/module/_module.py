"""The network and the linear branch as a scvi-tools module: inputs, loss and probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scvi.module.base import BaseModuleClass, LossOutput, auto_move_data
from torch import Tensor, nn

from tosica.module._embedding import MaskedEmbedding, MixedEmbedding
from tosica.module._transformer import Encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosica.data import ModalitySlice


class REGISTRY_KEYS:
    """Keys of the fields that ``setup_anndata`` registers."""

    X_KEY: Final = "X"
    LABELS_KEY: Final = "labels"
    BATCH_KEY: Final = "batch"
    MASK_KEY: Final = "mask"


@dataclass(frozen=True, eq=False)
class TokenLayout:
    """Genes and tokens of all modalities, on one gene axis and one token axis.

    Parameters
    ----------
    indptr
        Shape ``(n_tokens + 1,)``. Genes of token ``p`` are ``genes[indptr[p]:indptr[p + 1]]``, as
        in a CSC matrix.
    genes
        Shape ``(n_pairs,)``. Column of each pair's gene in the expression matrix, ascending within
        a token.
    slices
        The modalities: which columns of the expression matrix each has.
    modality
        Shape ``(n_tokens,)``. Position of each token's modality in ``slices``.
    no_dropout
        Shape ``(n_tokens,)``, bool. Tokens that token dropout never leaves out.
    names
        Names of the tokens; tokens that are no gene set come last. Empty if nobody needs names.
    var_names
        Names of the genes, ``(n_genes,)``.
    n_unannotated
        Number of tokens that are no gene set, but have every gene of their modality.
    mixed
        Whether a token mixes numbers of several gene sets, as in models of the original code.
    """

    indptr: np.ndarray
    genes: np.ndarray
    slices: tuple[ModalitySlice, ...]
    modality: np.ndarray
    no_dropout: np.ndarray
    names: tuple[str, ...] = ()
    var_names: np.ndarray = field(
        default_factory=lambda: np.empty(0, dtype=object), repr=False
    )
    n_unannotated: int = 0
    mixed: bool = False
    # For each pair its position among the pairs of all modalities' masks, one after the other.
    pair_order: np.ndarray | None = field(default=None, repr=False)

    def join_pairs(self, values: Sequence[np.ndarray | None]) -> np.ndarray:
        """Put one value for each pair of gene and token into the order of ``genes``.

        Parameters
        ----------
        values
            For each modality its pairs' values in the order of its mask, or ``None`` if it has no
            values, which become NaN.

        Returns
        -------
        Shape ``(n_pairs,)``, float32.
        """
        modality_of_pair = np.repeat(self.modality, np.diff(self.indptr))
        columns = []
        for modality, of_modality in enumerate(values):
            if of_modality is None:
                of_modality = np.full((modality_of_pair == modality).sum(), np.nan)
            columns.append(of_modality)
        joined = np.concatenate(columns).astype(np.float32)
        return joined if self.pair_order is None else joined[self.pair_order]


class Annotation(NamedTuple):
    """Output of :meth:`TOSICAModule.annotate`.

    ``latent`` is the class token, ``(n_cells, embed_dim)``; ``logits`` is ``(n_cells, n_labels)``;
    ``attention`` is ``(n_cells, n_tokens)``, or ``None`` where it was not asked for.
    """

    latent: Tensor
    logits: Tensor
    attention: Tensor | None


class LinearBranch(nn.Module):
    r"""Score labels by a sum over genes.

    .. math:: s_{ck} = b_k + \sum_g v_{kg} \, \hat x_{cg}

    The weights are fitted outside of the network (:mod:`tosica.linear`), so they are
    buffers and no parameters. :math:`\hat x` is expression that is clipped at each gene's
    largest value in the reference, and in which genes that a query lacks are imputed by
    their conditional mean given the measured genes (:meth:`clip_and_impute`). Cells that were
    measured in one modality of several have the mean of this sum and that of weights fitted
    to the modality alone. On CITE-seq the first is better for antibodies, the second for
    RNA, and the mean nearly the best of both.

    Parameters
    ----------
    slices
        Genes of each modality.
    n_labels
        Number of labels.
    """

    weights: Tensor
    """Shape ``(n_labels, n_genes)``."""
    bias: Tensor
    """Shape ``(n_labels,)``."""
    weights_alone: Tensor
    """Weights of each modality alone, ``(n_labels, n_genes)``; with several modalities only."""
    bias_alone: Tensor
    """Shape ``(n_labels, n_modalities)``."""
    clip_max: Tensor
    """Largest expression of each gene in the reference, ``(n_genes,)``."""
    mean: Tensor
    """Mean expression of each gene in the reference, ``(n_genes,)``."""
    loadings: Tensor
    """Loadings of a probabilistic PCA of the reference, ``(n_genes, n_components)``."""

    def __init__(self, slices: Sequence[ModalitySlice], n_labels: int) -> None:
        super().__init__()
        self._slices = slices
        n_genes = slices[-1].stop
        self.register_buffer("weights", torch.zeros(n_labels, n_genes))
        self.register_buffer("bias", torch.zeros(n_labels))
        if len(slices) > 1:
            self.register_buffer("weights_alone", torch.zeros(n_labels, n_genes))
            self.register_buffer("bias_alone", torch.zeros(n_labels, len(slices)))
        self.register_buffer("clip_max", torch.full((n_genes,), torch.inf))
        self.register_buffer("mean", torch.zeros(n_genes))
        self.register_buffer("loadings", torch.zeros(n_genes, 0))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        loadings = state_dict.get(f"{prefix}loadings")
        if loadings is not None:
            # The number of components depends on the reference.
            self.loadings = self.loadings.new_zeros(len(self.mean), loadings.shape[-1])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def weights_of(self, measured: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Weights ``(n_labels, n_genes)`` and biases for ``measured``, as in :meth:`clip_and_impute`."""
        if measured is None or len(self._slices) == 1:
            return self.weights, self.bias
        modalities = [
            modality
            for modality, genes in enumerate(self._slices)
            if bool(measured[genes.start : genes.stop].any())
        ]
        if len(modalities) != 1:
            return self.weights, self.bias
        (modality,) = modalities
        genes = slice(self._slices[modality].start, self._slices[modality].stop)
        weights = self.weights.clone()
        weights[:, genes] += self.weights_alone[:, genes]
        return weights / 2, (self.bias + self.bias_alone[:, modality]) / 2

    def weights_of_measured(self, measured: Tensor | None = None) -> Tensor:
        """Weights in which genes that were not measured are credited to those that they are imputed from.

        Parameters
        ----------
        measured
            As in :meth:`clip_and_impute`.

        Returns
        -------
        Shape ``(n_labels, n_genes)``, zero for genes that were not measured. The logits of two cells
        differ by the difference of their clipped expression times these weights.
        """
        weights, _ = self.weights_of(measured)
        if measured is None or bool(measured.all()):
            return weights
        of_scores = weights[:, ~measured] @ self.loadings[~measured]
        credited = torch.zeros_like(weights)
        credited[:, measured] = weights[:, measured] + of_scores @ self._score_weights(
            measured
        )
        return credited

    def _score_weights(self, measured: Tensor) -> Tensor:
        """Weights of measured genes in the scores of the PCA, ``(n_components, n_measured)``."""
        loadings = self.loadings[measured]
        identity = torch.eye(loadings.shape[1], device=loadings.device).to(loadings)
        return torch.linalg.solve(loadings.T @ loadings + identity, loadings.T)

    def forward(self, x: Tensor, measured: Tensor | None = None) -> Tensor:
        """Logits, shape ``(n_cells, n_labels)``; parameters as in :meth:`clip_and_impute`."""
        return F.linear(self.clip_and_impute(x, measured), *self.weights_of(measured))

    def clip_and_impute(self, x: Tensor, measured: Tensor | None = None) -> Tensor:
        r"""Clip expression, and impute genes that were not measured.

        With :math:`(x - \mu) / \sigma = L z + \varepsilon`, where :math:`z` and
        :math:`\varepsilon` are standard normal (probabilistic PCA), genes :math:`m` that were not
        measured are expected at

        .. math:: \mathrm E[x_m \mid x_o] = \mu_m + L_m (I + L_o^T L_o)^{-1} L_o^T (x_o - \mu_o)

        given the others, :math:`o`.

        Parameters
        ----------
        x
            Normalized expression, shape ``(n_cells, n_genes)``.
        measured
            Shape ``(n_genes,)``, bool: ``False`` for genes that the query lacks. By default every
            gene was measured.

        Returns
        -------
        Shape ``(n_cells, n_genes)``.

        References
        ----------
        Tipping and Bishop, *Probabilistic principal component analysis*, J. R. Stat. Soc. B 61, 611
        (1999).
        """
        x = torch.minimum(x, self.clip_max)
        if measured is None or bool(measured.all()):
            return x
        # torch.linalg.solve does not support half precision.
        with torch.autocast(x.device.type, enabled=False):
            loadings = self.loadings[measured]
            identity = torch.eye(loadings.shape[1], device=x.device).to(loadings)
            covariance = loadings.T @ loadings + identity
            projected = loadings.T @ (x - self.mean)[:, measured].T
            scores = torch.linalg.solve(covariance, projected).T
            expected = self.mean + scores @ self.loadings.T
        return torch.where(measured, x, expected)


class TOSICAModule(BaseModuleClass):
    """Masked embedding, Transformer encoder and linear head, and beside them a linear branch.

    Cells may be measured in one modality or in several. Each modality has tokens of its own, which
    the encoder reads without those of the other modalities, and the class tokens are averaged. A
    modality with many tokens therefore does not drown one with few, and one that was not measured
    is left out. ``modalities`` says which ones were measured, by their positions.

    Parameters
    ----------
    tokens
        Genes and modality of each token.
    n_labels
        Number of labels.
    embed_dim
        Width of a token.
    n_heads
        Number of attention heads; divides ``embed_dim``.
    n_layers
        Number of encoder layers.
    linear
        Whether there is a linear branch, whose logits are added to those of the network. It is
        fitted on its own; until then it adds nothing.
    """

    temperature: Tensor
    linear: LinearBranch | None
    baseline: Tensor
    token_modality: Tensor

    def __init__(
        self,
        tokens: TokenLayout,
        n_labels: int,
        *,
        embed_dim: int = 48,
        n_heads: int = 4,
        n_layers: int = 2,
        linear: bool = False,
    ) -> None:
        super().__init__()
        embedding = MixedEmbedding if tokens.mixed else MaskedEmbedding
        n_genes = tokens.slices[-1].stop
        self.embedding = embedding(
            tokens.indptr, tokens.genes, n_genes, embed_dim, tokens.no_dropout
        )
        self.encoder = Encoder(embed_dim, n_heads, n_layers)
        self.head = nn.Linear(embed_dim, n_labels)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.slices = tokens.slices
        n_modalities = len(self.slices)
        # All choices of modalities. Their order is that of the temperatures in a saved model.
        self.modality_choices: list[tuple[int, ...]] = [
            tuple(i for i in range(n_modalities) if choice >> i & 1)
            for choice in range(1, 2**n_modalities)
        ]
        # Probabilities are softmax(logits / temperature); fitted on held-out cells after training.
        # With several modalities there is one for each choice of modalities.
        shape = () if n_modalities == 1 else (len(self.modality_choices),)
        self.register_buffer("temperature", torch.ones(shape))
        # Mean of the labels' mean cells, which contributions are compared with; zero until it is known.
        self.register_buffer("baseline", torch.zeros(n_genes))
        self.linear = LinearBranch(self.slices, n_labels) if linear else None
        # The tokens are saved in the registry.
        token_modality = torch.as_tensor(tokens.modality, dtype=torch.int64)
        self.register_buffer("token_modality", token_modality, persistent=False)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Earlier versions saved a weight for each pair of gene and gene set.
        for pair_name, name in (
            ("linear.weight", "linear.weights"),
            ("linear.weight_alone", "linear.weights_alone"),
        ):
            pairs = state_dict.pop(f"{prefix}{pair_name}", None)
            if pairs is not None:
                # They may be of half precision.
                pairs = pairs.to(self.baseline)
                weights = pairs.new_zeros(len(pairs), len(self.baseline))
                state_dict[f"{prefix}{name}"] = weights.index_add(
                    1, self.embedding.genes, pairs
                )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def find_not_finite(self) -> str | None:
        """Name of the first tensor with a value that is not finite, if there is any."""
        for name, tensor in self.state_dict().items():
            is_finite = tensor.isfinite()
            if name == "linear.clip_max":
                # Before training, expression is not clipped.
                is_finite |= tensor.isposinf()
            if not is_finite.all():
                return name
        return None

    @auto_move_data
    def annotate(
        self,
        x: Tensor,
        *,
        attention: bool = True,
        modalities: tuple[int, ...] | None = None,
        measured: Tensor | None = None,
    ) -> Annotation:
        """Encode cells, score labels and trace the attention, in one pass.

        Parameters
        ----------
        x
            Normalized expression, shape ``(n_cells, n_genes)``.
        attention
            Whether to compute the attention rollout.
        modalities
            Positions of the modalities that were measured, by default all. Attention has columns
            for the tokens of these.
        measured
            Shape ``(n_genes,)``, bool: ``False`` for genes that the query lacks, see
            :meth:`LinearBranch.clip_and_impute`. By default it has all genes of ``modalities``.
        """
        x = self.clip(x)
        latent, rollout = self._latent(x, 1.0, modalities, rollout=attention)
        logits = self.generative(latent, x, measured, modalities)["logits"]
        return Annotation(latent, logits, rollout)

    def clip(self, x: Tensor) -> Tensor:
        """Clip each gene's expression at its largest value in the reference.

        A gene that a query expresses more than any cell of the reference would otherwise outweigh
        all other genes. Models without a linear branch do not clip.
        """
        return x if self.linear is None else torch.minimum(x, self.linear.clip_max)

    def network_logits(
        self, x: Tensor, modalities: tuple[int, ...] | None = None
    ) -> Tensor:
        """Score labels without the linear branch: logits, ``(n_cells, n_labels)``; differentiable.

        Parameters
        ----------
        x
            Normalized and clipped expression, shape ``(n_cells, n_genes)``.
        modalities
            Positions of the modalities that were measured, by default all.
        """
        return self.head(self._latent(x, 1.0, modalities)[0])

    def calibrated(
        self, logits: Tensor, modalities: tuple[int, ...] | None = None
    ) -> Tensor:
        """Divide logits by the temperature; softmax makes probabilities of them, ``(n_cells, n_labels)``."""
        temperature = self.temperature
        if temperature.ndim:
            choice = modalities or self.modality_choices[-1]
            temperature = temperature[self.modality_choices.index(choice)]
        return logits.float() / temperature

    def _all_choices(self, x: Tensor, keep: float, dropout: float) -> dict[str, Tensor]:
        """Encode every cell with every choice of modalities, and weight each choice.

        This is the expectation over a random choice. The class token of each modality is
        computed once, and their means cost next to nothing.
        """
        latents = torch.stack(
            [self._latent(x, keep, (i,))[0] for i in range(len(self.slices))]
        )
        shares = latents.new_zeros(len(self.modality_choices), len(latents))
        for row, choice in zip(shares, self.modality_choices, strict=True):
            row[list(choice)] = 1 / len(choice)
        weight = shares.new_full((len(shares),), dropout / (len(shares) - 1))
        weight[-1] = 1 - dropout
        views = torch.einsum("cm,mnd->cnd", shares, latents)
        return {
            "latent": views.flatten(0, 1),
            "weight": weight.repeat_interleave(len(x)),
        }

    def _latent(
        self,
        x: Tensor,
        keep: float,
        modalities: tuple[int, ...] | None,
        *,
        rollout: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Mean of the modalities' class tokens, and with ``rollout`` the attention to their tokens."""
        if len(self.slices) == 1:
            return self.encoder(self.embedding(x, keep), rollout=rollout)
        modalities = modalities or self.modality_choices[-1]
        latents: list[Tensor] = []
        rollouts: list[Any] = []
        for modality in modalities:
            tokens = self.embedding(x, keep, self.token_modality == modality)
            latent, attention = self.encoder(tokens, rollout=rollout)
            latents.append(latent)
            rollouts.append(attention)
        if len(modalities) == 1:
            return latents[0], rollouts[0]
        latent = torch.stack(latents).mean(0)
        if not rollout:
            return latent, None
        is_measured = torch.isin(
            self.token_modality, self.token_modality.new_tensor(modalities)
        )
        token_modality = self.token_modality[is_measured]
        joined = rollouts[0].new_empty(len(x), len(token_modality))
        for modality, attention in zip(modalities, rollouts, strict=True):
            joined[:, token_modality == modality] = attention / len(modalities)
        return latent, joined

    def _get_inference_input(
        self, tensors: dict[str, Tensor], **kwargs: Any
    ) -> dict[str, Tensor]:
        return {"x": tensors[REGISTRY_KEYS.X_KEY]}

    def _get_generative_input(
        self,
        tensors: dict[str, Tensor],
        inference_outputs: dict[str, Tensor],
        **kwargs: Any,
    ) -> dict[str, Any]:
        return {
            key: inference_outputs[key]
            for key in ("latent", "x", "modalities")
            if key in inference_outputs
        }

    @auto_move_data
    def inference(
        self,
        x: Tensor,
        gene_dropout: float = 0.0,
        complete_cells: float = 0.0,
        token_keep: float = 1.0,
        modality_dropout: float = 0.0,
        modalities: tuple[int, ...] | None = None,
    ) -> dict[str, Any]:
        """Encode cells.

        Parameters
        ----------
        x
            Normalized expression, shape ``(n_cells, n_genes)``.
        gene_dropout
            Share of the genes that is hidden, drawn anew for each cell; the rest is scaled up.
        complete_cells
            Share of the cells in which no gene is hidden.
        token_keep
            Share of the gene sets that the minibatch is embedded in.
        modality_dropout
            Weight, in the loss, of cells that lack some of their modalities; every choice of
            modalities but all of them has the same weight. Complete cells have the rest.
        modalities
            Positions of the modalities that were measured, by default all.

        Returns
        -------
        ``latent``, shape ``(n_cells, embed_dim)``. With ``modality_dropout`` it has a block of
        cells for each choice of modalities, complete cells last, and there is ``weight``,
        ``(n_blocks * n_cells,)``. While the network is not training, also the expression, ``x``,
        and ``modalities``.
        """
        x = self.clip(x)
        if gene_dropout > 0:
            is_complete = torch.rand(len(x), 1, device=x.device) < complete_cells
            x = torch.where(is_complete, x, dropout_16_bit(x, gene_dropout))
        if modality_dropout > 0 and len(self.slices) > 1:
            return self._all_choices(x, token_keep, modality_dropout)
        latent, _ = self._latent(x, token_keep, modalities)
        if self.training:
            # The network is trained without the linear branch.
            return {"latent": latent}
        return {"latent": latent, "x": x, "modalities": modalities}

    @auto_move_data
    def generative(
        self,
        latent: Tensor,
        x: Tensor | None = None,
        measured: Tensor | None = None,
        modalities: tuple[int, ...] | None = None,
    ) -> dict[str, Tensor]:
        """Score labels: ``logits``, ``(n_cells, n_labels)``; of the network alone without ``x``.

        The linear branch imputes genes that were not ``measured``, and those of the other modalities.
        """
        logits = self.head(latent)
        if x is None or self.linear is None:
            return {"logits": logits}
        modalities = modalities or self.modality_choices[-1]
        if len(modalities) < len(self.slices):
            is_read = torch.zeros_like(self.baseline, dtype=torch.bool)
            for modality in modalities:
                genes = self.slices[modality]
                is_read[genes.start : genes.stop] = True
            measured = is_read if measured is None else is_read & measured
        return {"logits": logits + self.linear(x, measured)}

    def loss(
        self,
        tensors: dict[str, Tensor],
        inference_outputs: dict[str, Tensor],
        generative_outputs: dict[str, Tensor],
        label_smoothing: float = 0.0,
        label_shares: Tensor | None = None,
    ) -> LossOutput:
        """Cross-entropy of the labels, averaged over the cells.

        With ``label_shares``, ``(n_labels,)``, labels were drawn that often, and logits are learnt as
        if they were drawn equally often.
        """
        logits = generative_outputs["logits"]
        n_labels = logits.shape[1]
        if label_shares is None:
            label_shares = logits.new_full((n_labels,), 1 / n_labels)
        label = tensors[REGISTRY_KEYS.LABELS_KEY].long().reshape(-1)
        label = label.repeat(len(logits) // max(len(label), 1))
        log_probability = (logits + label_shares.log()).log_softmax(1)
        # Cells without a label have the code behind the last label.
        label_loss = F.nll_loss(
            log_probability, label, reduction="none", ignore_index=n_labels
        )
        mean_loss = -(log_probability * label_shares).sum(1)
        cell_loss = (1 - label_smoothing) * label_loss + label_smoothing * mean_loss
        weight = inference_outputs.get("weight", (label < n_labels).to(cell_loss))
        loss = (cell_loss * weight).sum() / weight.sum()
        return LossOutput(
            loss=loss,
            classification_loss=loss,
            logits=logits,
            true_labels=label,
            n_obs_minibatch=label.shape[0],
        )


def dropout_16_bit(x: Tensor, share: float) -> Tensor:
    """Set a random share of the values to zero, and scale up the rest.

    On a processor most of the time of torch's dropout goes into its draws, a double for each value.
    16 bits are enough here, so four values share a draw.
    """
    if x.device.type != "cpu":
        return F.dropout(x, share)
    n_draws = -(-x.numel() // 4)
    # From the lowest integer on: the sign must be as random as any other bit.
    bits = torch.empty(n_draws, dtype=torch.int64).random_(-(2**63), None)
    levels = bits.view(torch.int16)[: x.numel()].view_as(x)
    is_kept = levels >= round(share * 2**16) - 2**15
    return x / (1 - share) * is_kept
