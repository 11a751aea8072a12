"""The whole network as a scvi-tools module: tensors in, tensors out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scvi.module.base import BaseModuleClass, LossOutput, auto_move_data
from torch import Tensor, nn

from tosica.data._normalize import ModalitySlice, normalize
from tosica.module._constants import REGISTRY_KEYS
from tosica.module._embedding import MaskedEmbedding
from tosica.module._encoder import Encoder
from tosica.module._linear import LinearBranch
from tosica.module._mixed_embedding import MixedEmbedding


class Annotation(NamedTuple):
    """What one pass over cells gives.

    ``latent`` is the class token, ``(n_cells, embed_dim)``; ``logits`` is ``(n_cells, n_labels)``;
    ``attention`` is ``(n_cells, n_tokens)``, or ``None`` where it was not asked for.
    """

    latent: Tensor
    logits: Tensor
    attention: Tensor | None


class TOSICAModule(BaseModuleClass):
    """Masked embedding, Transformer encoder, linear head, and beside them a linear branch.

    Cells may be seen in one modality or in several. Each has tokens of its own, which the encoder
    sees without those of the others, and the class tokens are averaged. So a modality with many
    tokens does not drown one with few, and one that is not seen is simply not there. Which ones are
    seen is told by a number, ``seen``, whose bit ``i`` stands for modality ``i``.

    Parameters
    ----------
    indptr
        Shape ``(n_tokens + 1,)``. Genes of token ``p`` are ``genes[indptr[p]:indptr[p + 1]]``.
    genes
        Shape ``(n_pairs,)``. Row of each pair's gene in the expression matrix.
    n_genes
        Number of genes.
    n_labels
        Number of labels.
    embed_dim
        Width of a token.
    n_heads
        Number of attention heads; divides ``embed_dim``.
    n_layers
        Number of encoder layers.
    label_of_code
        Shape ``(n_codes,)``. Which of the ``n_labels`` each code of the labels field stands for,
        -1 for a code without one. By default codes are labels.
    target_sum
        If the minibatches hold counts, the total that each cell is scaled to before the
        logarithm; ``None`` if they hold log-normalised expression already.
    mixed_tokens
        Whether a token mixes numbers of several gene sets, as in models of the original code.
    sections
        Modalities of the genes, with what is done to each instead of ``target_sum``. By default
        there is one.
    token_modality
        Shape ``(n_tokens,)``. Which of the sections each token belongs to.
    full
        Shape ``(n_tokens,)``, bool. Tokens that are never left out at random; by default those
        with every gene.
    linear
        Whether there is a linear branch, whose logits are added to those of the network. It is
        fitted on its own; until then it adds nothing. For one modality.
    """

    temperature: Tensor
    linear: LinearBranch | None
    baseline: Tensor
    label_of_code: Tensor
    token_modality: Tensor

    def __init__(
        self,
        indptr: np.ndarray,
        genes: np.ndarray,
        *,
        n_genes: int,
        n_labels: int,
        embed_dim: int = 48,
        n_heads: int = 4,
        n_layers: int = 2,
        label_of_code: np.ndarray | None = None,
        target_sum: float | None = None,
        mixed_tokens: bool = False,
        sections: tuple[ModalitySlice, ...] | None = None,
        token_modality: np.ndarray | None = None,
        full: np.ndarray | None = None,
        linear: bool = False,
    ) -> None:
        super().__init__()
        if mixed_tokens:
            self.embedding: MaskedEmbedding = MixedEmbedding(indptr, genes, n_genes, embed_dim)
        else:
            self.embedding = MaskedEmbedding(indptr, genes, n_genes, embed_dim, full)
        self.encoder = Encoder(embed_dim, n_heads, n_layers)
        self.head = nn.Linear(embed_dim, n_labels)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if sections is None:
            how = None if target_sum is None else "log1p"
            sections = (ModalitySlice(0, n_genes, how, target_sum or 1.0),)  # type: ignore[arg-type]
        self.sections = sections
        # Probabilities are softmax(logits / temperature); fitted on held-out cells after training.
        # With several modalities there is one for each choice of what is seen.
        shape = () if len(sections) == 1 else (self.everything,)
        self.register_buffer("temperature", torch.ones(shape))
        # Mean expression of the reference, which attribution compares with; zero until it is known.
        self.register_buffer("baseline", torch.zeros(n_genes))
        self.linear = LinearBranch(self.embedding.genes, n_genes, n_labels) if linear else None
        if token_modality is None:
            token_modality = np.zeros(len(indptr) - 1)
        owner = torch.as_tensor(token_modality, dtype=torch.int64)
        # Not saved: which tokens there are comes with the model's registry.
        self.register_buffer("token_modality", owner, persistent=False)
        codes = np.arange(n_labels) if label_of_code is None else label_of_code
        self.register_buffer("label_of_code", torch.as_tensor(codes, dtype=torch.int64))

    @property
    def everything(self) -> int:
        """The number that stands for every modality."""
        return 2 ** len(self.sections) - 1

    @auto_move_data
    def annotate(
        self,
        x: Tensor,
        *,
        attention: bool = True,
        seen: int | None = None,
        measured: Tensor | None = None,
    ) -> Annotation:
        """Everything that is known about cells, in one pass.

        Parameters
        ----------
        x
            Normalised expression, shape ``(n_cells, n_genes)``.
        attention
            Whether to follow the attention back to the gene sets.
        seen
            Modalities that the cells are seen in, by default all. Attention has columns for the
            tokens of these.
        measured
            Shape ``(n_genes,)``, bool: ``False`` for genes that the query lacks, see
            :meth:`LinearBranch.expression <tosica.module._linear.LinearBranch.expression>`.
        """
        x = self.bounded(x)
        if not attention:
            latent = self._latent(x, 1.0, seen)
            return Annotation(latent, self._logits(latent, x, measured), None)
        parts = [self.encoder.rollout(self._embed(x, 1.0, i)) for i in self._positions(seen)]
        latent, rows = parts[0]
        if len(parts) > 1:
            latent = torch.stack([part for part, _ in parts]).mean(0)
            present = self.token_modality.new_tensor(self._positions(seen))
            owner = self.token_modality[torch.isin(self.token_modality, present)]
            rows = rows.new_empty(len(rows), len(owner))
            for i, (_, part) in zip(self._positions(seen), parts, strict=True):
                rows[:, owner == i] = part / len(parts)
        return Annotation(latent, self._logits(latent, x, measured), rows)

    def bounded(self, x: Tensor) -> Tensor:
        """Expression as the model reads it: at most the largest value that the reference has.

        A gene that a query expresses more than any cell of the reference would otherwise outweigh
        all others. Models without a linear branch read expression as it is.
        """
        return x if self.linear is None else torch.minimum(x, self.linear.upper)

    def score(self, vectors: Tensor) -> Tensor:
        """Score labels from the vectors of gene sets, in a way that gradients can go back.

        For models of one modality. What the linear branch adds is left out.

        Parameters
        ----------
        vectors
            What the embedding's ``gene_set_embeddings`` gives, ``(n_cells, n_tokens, embed_dim)``.

        Returns
        -------
        Logits, shape ``(n_cells, n_labels)``.
        """
        return self.head(self.encoder(self.embedding.deal(vectors)))

    def _logits(self, latent: Tensor, x: Tensor, measured: Tensor | None = None) -> Tensor:
        logits = self.head(latent)
        return logits if self.linear is None else logits + self.linear(x, measured)

    def probabilities(self, logits: Tensor, seen: int | None = None) -> Tensor:
        """Calibrated probabilities, shape ``(n_cells, n_labels)``."""
        temperature = self.temperature
        if temperature.ndim:
            temperature = temperature[(seen or self.everything) - 1]
        return torch.softmax(logits.float() / temperature, 1)

    def _positions(self, seen: int | None) -> list[int]:
        """Positions of the modalities that a number stands for."""
        seen = self.everything if seen is None else seen
        return [i for i in range(len(self.sections)) if (seen >> i) % 2]

    def _embed(self, x: Tensor, keep: float, modality: int) -> Tensor:
        """Tokens of one modality."""
        one = len(self.sections) == 1
        return self.embedding(x, keep, None if one else self.token_modality == modality)

    def _views(self, x: Tensor, keep: float, dropout: float) -> dict[str, Tensor]:
        """Every cell in every choice of modalities, and what each choice counts.

        The expectation over a draw of modalities: the class tokens are there anyway, and a mean of
        them costs next to nothing, so that no cell has to wait for its turn.
        """
        latents = torch.stack([self._latent(x, keep, 1 << i) for i in self._positions(None)])
        choices = torch.arange(1, self.everything + 1, device=x.device)
        shown = (choices[:, None] >> torch.arange(len(latents), device=x.device)) % 2
        shares = (shown / shown.sum(1, keepdim=True)).to(latents)
        weight = shares.new_full((len(choices),), dropout / (len(choices) - 1))
        weight[-1] = 1 - dropout
        views = torch.einsum("cm,mnd->cnd", shares, latents)
        return {"latent": views.flatten(0, 1), "weight": weight.repeat_interleave(len(x))}

    def _latent(self, x: Tensor, keep: float, seen: int | None) -> Tensor:
        """Mean of the class tokens of some modalities."""
        latents = [self.encoder(self._embed(x, keep, i)) for i in self._positions(seen)]
        return latents[0] if len(latents) == 1 else torch.stack(latents).mean(0)

    def _get_inference_input(self, tensors: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        x = tensors[REGISTRY_KEYS.X_KEY]
        return {"x": normalize(x, self.sections)}

    def _get_generative_input(
        self, tensors: dict[str, Tensor], inference_outputs: dict[str, Tensor], **kwargs: Any
    ) -> dict[str, Tensor]:
        return {key: inference_outputs[key] for key in ("latent", "x") if key in inference_outputs}

    @auto_move_data
    def inference(
        self,
        x: Tensor,
        gene_dropout: float = 0.0,
        token_keep: float = 1.0,
        modality_dropout: float = 0.0,
        seen: int | None = None,
        shifts: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Encode cells.

        Parameters
        ----------
        x
            Normalised expression, shape ``(n_cells, n_genes)``.
        gene_dropout
            Share of the genes that is hidden, drawn anew for each cell; the rest is scaled up.
        token_keep
            Share of the gene sets that the minibatch sees.
        modality_dropout
            What the loss of cells that are seen without some of their modalities counts, each
            choice but all and none equally; the loss of cells that are seen whole counts the rest.
        seen
            Modalities that the cells are seen in, by default all.
        shifts
            Shape ``(n_shifts, n_genes)``. A sum of these is added to each cell, each of them times
            a number from the standard normal distribution, before genes are hidden.

        Returns
        -------
        ``latent``, shape ``(n_cells, embed_dim)``. With ``modality_dropout`` a block of cells for
        each choice of modalities, all of them last, and ``weight``, ``(n_blocks * n_cells,)``, what
        each row counts. While the network is not training, also the expression, ``x``.
        """
        if shifts is not None:
            # No gene is expressed less than not at all.
            x = F.relu(x + torch.randn(len(x), len(shifts), device=x.device).to(x) @ shifts)
        x = self.bounded(x)
        if gene_dropout > 0:
            x = _hide(x, gene_dropout)
        if modality_dropout > 0 and len(self.sections) > 1:
            return self._views(x, token_keep, modality_dropout)
        found = {"latent": self._latent(x, token_keep, seen)}
        # The network learns by itself, as if there were no linear branch.
        return found if self.training else found | {"x": x}

    @auto_move_data
    def generative(self, latent: Tensor, x: Tensor | None = None) -> dict[str, Tensor]:
        """Score labels: ``logits``, ``(n_cells, n_labels)``; of the network alone without ``x``."""
        return {"logits": self.head(latent) if x is None else self._logits(latent, x)}

    def loss(
        self,
        tensors: dict[str, Tensor],
        inference_outputs: dict[str, Tensor],
        generative_outputs: dict[str, Tensor],
        label_smoothing: float = 0.0,
    ) -> LossOutput:
        """Cross-entropy of the labels, averaged over the cells."""
        logits = generative_outputs["logits"]
        label = self.label_of_code[tensors[REGISTRY_KEYS.LABELS_KEY].long().reshape(-1)]
        weight = inference_outputs.get("weight")
        if weight is None:
            loss = F.cross_entropy(logits, label, label_smoothing=label_smoothing)
        else:
            label = label.repeat(len(logits) // len(label))
            each = F.cross_entropy(logits, label, label_smoothing=label_smoothing, reduction="none")
            loss = (each * weight).sum() / weight.sum()
        return LossOutput(
            loss=loss,
            classification_loss=loss,
            logits=logits,
            true_labels=label,
            n_obs_minibatch=label.shape[0],
        )


def _hide(x: Tensor, share: float) -> Tensor:
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
    kept = levels >= round(share * 2**16) - 2**15
    return x / (1 - share) * kept
