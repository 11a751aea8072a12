"""Attention and the encoder, against attention and rollout that are written out."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tosica.module import Encoder, _attention, _transformer
from tosica.module._transformer import LayerAttention, attend, multiply_row

# ------------------------------------------------------------------ attention


def projection(*shape, size=1.0, seed=0):
    """Random queries, keys and values, (B, T, 3, H, d)."""
    n_cells, n_tokens, n_heads, width = shape
    rng = np.random.default_rng(seed)
    qkv = rng.normal(size=(n_cells, n_tokens, 3, n_heads, width))
    return torch.from_numpy(size * qkv).float()


def written_out(qkv):
    """Mixed values (B, T, H, d) and weights (B, H, T, T), in double precision."""
    query, key, value = qkv.double().permute(2, 0, 3, 1, 4)
    weights = (query @ key.transpose(-2, -1) / qkv.shape[-1] ** 0.5).softmax(-1)
    return (weights @ value).transpose(1, 2), weights


shapes = st.tuples(
    st.integers(0, 3),
    st.integers(1, 70),
    st.integers(1, 3),
    st.sampled_from([5, 12, 20]),
)


@given(shapes, st.floats(0.01, 3), st.integers(0, 9))
@settings(max_examples=12)
def test_values_and_weights(shape, size, seed):
    qkv = projection(*shape, size=size, seed=seed)
    copy = qkv.clone()
    mixed, mean = attend(qkv, mean=True)
    expected, weights = written_out(qkv)
    tolerance = 2e-6 * (1 + size) ** 2
    assert_close(mixed.double(), expected, rtol=0, atol=tolerance)
    # The compiler orders sums by how arrays lie in memory.
    assert_close(attend(qkv)[0], mixed)
    assert attend(qkv)[1] is None
    # Only our kernel returns the weights; it is not for wide heads.
    assert (mean is None) == (shape[3] > 16)
    if mean is not None:
        assert_close(mean.double(), weights.mean(1), rtol=0, atol=tolerance)
    assert torch.equal(qkv, copy)


@given(shapes, st.floats(0.01, 3), st.integers(0, 9))
@settings(max_examples=8)
def test_gradients(shape, size, seed):
    qkv = projection(*shape, size=size, seed=seed).requires_grad_()
    mixed, _ = attend(qkv)
    slope = torch.from_numpy(np.random.default_rng(seed).normal(size=mixed.shape))
    (gradient,) = torch.autograd.grad((mixed * slope.float()).sum(), qkv)
    double = qkv.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad((written_out(double)[0] * slope).sum(), double)
    largest = 1 + float(expected.abs().max()) if expected.numel() else 1
    assert_close(gradient.double(), expected, rtol=0, atol=5e-6 * largest * (1 + size))


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_times_the_weights(is_kept, dtype, monkeypatch):
    monkeypatch.setattr(_transformer, "_MAX_WEIGHTS", 200)
    qkv = projection(3, 40, 2, 5).to(dtype)
    weights = written_out(qkv)[1].mean(1)
    row = torch.rand(3, 40, dtype=dtype)
    attention = LayerAttention(qkv, weights.to(dtype) if is_kept else None)
    expected = torch.einsum("bi,bij->bj", row.double(), weights)
    assert_close(multiply_row(row, attention).double(), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("size", [8.0, 30.0, 1000.0])
@pytest.mark.parametrize("alike", [False, True])
def test_sharp_attention_and_very_small_scores(size, alike):
    qkv = projection(2, 20, 2, 5, size=1 if alike else size)
    if alike:
        qkv[:, :, 0] = size
        qkv[:, :, 1] = -size
    mean = attend(qkv.clone(), mean=True)[1]
    mixed, _ = attend(qkv.requires_grad_())
    slope = torch.linspace(-1, 1, mixed.numel()).view_as(mixed)
    (gradient_of_kernel,) = torch.autograd.grad((mixed * slope).sum(), qkv)
    assert torch.isfinite(gradient_of_kernel).all()
    double = qkv.detach().double().requires_grad_()
    expected, weights = written_out(double)
    # Scores of a million leave single precision a digit behind the point.
    atol = 1e-5 if alike else size * (1e-3 if size < 100 else 0.05)
    assert_close(mixed.double(), expected, rtol=0, atol=atol)
    assert_close(mean.double(), weights.mean(1), rtol=0, atol=1e-6 if alike else 0.1)
    if alike and size < 1000:
        (gradient,) = torch.autograd.grad((expected * slope).sum(), double)
        assert_close(
            gradient_of_kernel.double(),
            gradient,
            rtol=0,
            atol=1e-2 * float(gradient.abs().max()),
        )


# ------------------------------------------------------------------ the encoder

# Few widths of a head, because the kernel is compiled for each.
DIM = 10
HEADS = 2


def make(n_layers=3, embed_dim=DIM, n_heads=HEADS):
    torch.manual_seed(n_layers)
    encoder = Encoder(embed_dim, n_heads, n_layers).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return encoder


def tokens(n_cells=5, n_tokens=17, embed_dim=DIM):
    generator = torch.Generator().manual_seed(0)
    tokens_first = torch.randn(
        n_tokens, n_cells, embed_dim, generator=generator, dtype=torch.float64
    )
    # Cells as they come out of the embedding: the first axis is not the slowest one.
    return tokens_first.transpose(0, 1)


def in_full(encoder, t):
    """The class token with all tokens through all layers, and the whole rollout map's row."""
    t = torch.cat([encoder.class_token.expand(len(t), 1, -1), t], 1)
    joint = torch.eye(t.shape[1], dtype=t.dtype).expand(len(t), -1, -1)
    for block in encoder.blocks:
        t, attention = block(t)
        weights = written_out(attention.qkv)[1].mean(1)
        joint = (weights + torch.eye(t.shape[1], dtype=t.dtype)) / 2 @ joint
    return encoder.norm(t)[:, 0], joint[:, 0, 1:]


@pytest.mark.parametrize(
    ("embed_dim", "n_heads", "n_layers"), [(12, 1, 1), (10, 2, 3), (36, 2, 2)]
)
@pytest.mark.parametrize("has_mean", [True, False])
def test_single_precision_without_gradients(
    embed_dim,
    n_heads,
    n_layers,
    has_mean,
    monkeypatch,
):
    if not has_mean:
        monkeypatch.setattr(_attention, "_MAX_MEAN_TOKENS", 0)
    encoder = make(n_layers, embed_dim, n_heads)
    t = tokens(embed_dim=embed_dim)
    with torch.no_grad():
        expected, row = encoder(t, rollout=True)
    single = deepcopy(encoder).float()
    t = t.float()
    with torch.inference_mode():
        latent, attention = single(t, rollout=True)
        assert_close(single(t)[0], latent, rtol=0, atol=1e-5)
        monkeypatch.setattr(Encoder, "cache_bytes", 1)
        for apart, together in zip(
            single(t, rollout=True), (latent, attention), strict=True
        ):
            assert_close(apart, together, rtol=1e-6, atol=1e-6)
    assert_close(latent, expected.float(), rtol=0, atol=3e-5)
    assert_close(attention, row.float(), rtol=3e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_attention_has_no_gradient_but_the_latent_has(dtype):
    encoder = make().to(dtype)
    t = tokens().to(dtype).requires_grad_()
    latent, attention = encoder(t, rollout=True)
    assert not attention.requires_grad
    assert attention.dtype == (
        torch.float64 if dtype == torch.float64 else torch.float32
    )
    assert latent.dtype == dtype
    latent.square().sum().backward()
    assert t.grad.abs().sum() > 0


@pytest.mark.parametrize("n_frozen", [0, 1, 2])
def test_gradients_of_parts_and_frozen_layers(n_frozen):
    encoder = make(2).train()
    t = tokens(40).requires_grad_()
    for block in list(encoder.blocks)[:n_frozen]:
        block.requires_grad_(requires_grad=False)
    expected, _ = in_full(encoder, t)
    (gradient,) = torch.autograd.grad(expected.square().sum(), t)
    encoder(t)[0].square().sum().backward()
    assert_close(t.grad, gradient)
    for name, weight in encoder.named_parameters():
        assert (weight.grad is not None) == weight.requires_grad, name
