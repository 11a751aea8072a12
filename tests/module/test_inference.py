"""The forward pass without gradients on processors, against layers in double precision."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from tosica.module import Encoder, _inference

Annotated = tuple[torch.Tensor, torch.Tensor]


def make(embed_dim: int = 12, n_heads: int = 4, n_layers: int = 3) -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(embed_dim, n_heads, n_layers)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return encoder


def tokens(n_cells: int = 5, n_tokens: int = 17, embed_dim: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    # Cells as they come out of the embedding: the first axis is not the slowest one.
    return torch.randn(n_tokens, n_cells, embed_dim, generator=generator).transpose(0, 1)


def in_double(encoder: Encoder, t: torch.Tensor) -> Annotated:
    latent, attention = deepcopy(encoder).double().rollout(t.double())
    return latent.detach().float(), attention.float()


@pytest.mark.parametrize(
    ("embed_dim", "n_heads", "n_layers"), [(12, 4, 1), (12, 4, 3), (10, 2, 2), (51, 3, 2)]
)
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("onednn", [True, False])
def test_single_precision(
    embed_dim: int,
    n_heads: int,
    n_layers: int,
    keeps: bool,
    onednn: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_inference, "_KEPT_BYTES", 2**22 if keeps else 0)
    if not onednn:
        monkeypatch.setattr(_inference, "_has_onednn", lambda _: False)
    encoder, t = make(embed_dim, n_heads, n_layers), tokens(embed_dim=embed_dim)
    before = t.clone()
    latent, attention = in_double(encoder, t)
    with torch.inference_mode():
        found, row = encoder.rollout(t)
        torch.testing.assert_close(encoder(t), found, rtol=0, atol=1e-5)
    torch.testing.assert_close(found, latent, rtol=0, atol=1e-5)
    torch.testing.assert_close(row, attention, rtol=1e-5, atol=1e-7)
    assert torch.equal(t, before)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("onednn", [True, False])
def test_bfloat16(keeps: bool, onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_inference, "_KEPT_BYTES", 2**22 if keeps else 0)
    if not onednn:
        monkeypatch.setattr(_inference, "_has_onednn", lambda _: False)
    encoder, t = make(), tokens()
    latent, attention = in_double(encoder, t)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found, row = encoder.rollout(t)
        assert encoder(t).dtype == found.dtype == row.dtype == torch.float32
    assert (found - latent).abs().max() > 1e-5
    torch.testing.assert_close(found, latent, rtol=0, atol=0.05)
    torch.testing.assert_close(row, attention, rtol=0.05, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cells_do_not_depend_on_their_neighbors(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, t = make(), tokens(9)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16)
    with torch.inference_mode(), autocast:
        together = encoder.rollout(t)
        monkeypatch.setattr(Encoder, "cache_bytes", 1)
        apart = encoder.rollout(t)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_gradients_go_through_the_layers() -> None:
    encoder, t = make(), tokens().requires_grad_()
    latent, _ = encoder.rollout(t)
    latent.square().sum().backward()
    assert t.grad.abs().sum() > 0


def test_weights_that_are_no_numbers_show() -> None:
    encoder = make()
    with torch.no_grad():
        encoder.blocks[0].fc2.weight[0, 0] = torch.nan
    for enabled in (False, True):
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            latent, _ = encoder.rollout(tokens())
        assert latent.isnan().any()
