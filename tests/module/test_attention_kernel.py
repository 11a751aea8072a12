"""The attention kernel for processors, against attention in double precision, written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica.module import _attention_kernel as kernel

SCALE = 0.4


def projection(*shape: int, size: float = 1.0, seed: int = 0) -> torch.Tensor:
    """Random queries, keys and values, (n, T, 3, H, d)."""
    n_cells, n_tokens, n_heads, width = shape
    drawn = np.random.default_rng(seed).normal(size=(n_cells, n_tokens, 3, n_heads, width))
    return torch.from_numpy(size * drawn).float()


def written_out(qkv: torch.Tensor, scale: float = SCALE) -> tuple[torch.Tensor, ...]:
    """Mixed values, log-sum-exp and weights, in double precision."""
    query, key, value = qkv.double().permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(-2, -1) * scale
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2), scores.logsumexp(-1), weights


shapes = st.tuples(
    st.integers(0, 3), st.integers(1, 70), st.integers(1, 3), st.sampled_from([1, 5, 12])
)


@given(shapes, st.floats(0.01, 3), st.integers(0, 9))
@settings(max_examples=60)
def test_mixed_values_and_sums(shape: tuple[int, ...], size: float, seed: int) -> None:
    qkv = projection(*shape, size=size, seed=seed)
    mixed, logsumexp = kernel.attend(qkv, SCALE)
    expected, sums, _ = written_out(qkv)
    torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=2e-6 * (1 + size) ** 2)
    ln_2 = float(np.log(2))
    torch.testing.assert_close(logsumexp.double() * ln_2, sums, rtol=2e-6, atol=2e-5)


@pytest.mark.slow
@given(shapes, st.floats(0.01, 3), st.integers(0, 9))
@settings(max_examples=60)
def test_gradients(shape: tuple[int, ...], size: float, seed: int) -> None:
    qkv = projection(*shape, size=size, seed=seed).requires_grad_()
    mixed, logsumexp = kernel.attend(qkv, SCALE)
    assert not logsumexp.requires_grad
    slope = torch.from_numpy(np.random.default_rng(seed).normal(size=mixed.shape))
    (found,) = torch.autograd.grad((mixed * slope.float()).sum(), qkv)
    double = qkv.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad((written_out(double)[0] * slope).sum(), double)
    largest = 1 + float(expected.abs().max()) if expected.numel() else 1
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-6 * largest * (1 + size))


@pytest.mark.slow
@given(shapes, st.floats(0.01, 3), st.integers(0, 9))
@settings(max_examples=60)
def test_a_row_is_carried(shape: tuple[int, ...], size: float, seed: int) -> None:
    qkv = projection(*shape, size=size, seed=seed)
    row = torch.from_numpy(np.random.default_rng(seed).random(shape[:2])).float()
    _, logsumexp = kernel.attend(qkv, SCALE)
    carried = kernel.rollout_row(row, qkv, SCALE, logsumexp)
    expected = torch.einsum("ni,nhij->nhj", row.double(), written_out(qkv)[2])
    torch.testing.assert_close(carried.double(), expected, rtol=2e-5, atol=1e-7)
    torch.testing.assert_close(carried.sum(2), row.sum(1)[:, None].expand(carried.shape[:2]))


def test_neighbours_change_nothing() -> None:
    qkv, row = projection(7, 50, 4, 12).requires_grad_(), torch.rand(7, 50)

    def everything(qkv: torch.Tensor, row: torch.Tensor) -> list[torch.Tensor]:
        mixed, logsumexp = kernel.attend(qkv, SCALE)
        (slope,) = torch.autograd.grad(mixed.square().sum(), qkv)
        return [mixed, logsumexp, slope, kernel.rollout_row(row, qkv, SCALE, logsumexp)]

    together = everything(qkv, row)
    for one, other in zip(together, everything(qkv[3:4], row[3:4]), strict=True):
        assert torch.equal(one[3:4], other)


@pytest.mark.parametrize("size", [8.0, 30.0, 1000.0])
def test_sharp_attention_neither_overflows_nor_vanishes(size: float) -> None:
    qkv = projection(2, 20, 2, 4, size=size).requires_grad_()
    mixed, logsumexp = kernel.attend(qkv, SCALE)
    (slope,) = torch.autograd.grad(mixed.sum(), qkv)
    carried = kernel.rollout_row(torch.ones(2, 20), qkv, SCALE, logsumexp)
    for found in (mixed, logsumexp, slope, carried):
        assert torch.isfinite(found).all()
    # Scores of a million leave single precision a digit behind the point.
    few = size < 100
    expected, _, weights = written_out(qkv.detach())
    torch.testing.assert_close(
        mixed.double(), expected, rtol=0, atol=size * (1e-3 if few else 0.05), check_dtype=False
    )
    # An error of 0.1 in a score changes its weight by a tenth, and a row may sum twenty of them.
    rtol, atol = (0, 1e-2) if few else (0.25, 0.5)
    torch.testing.assert_close(carried.double(), weights.sum(2), rtol=rtol, atol=atol)


@pytest.mark.parametrize("size", [3.0, 30.0, 300.0])
def test_scores_that_are_all_very_small(size: float) -> None:
    qkv = projection(2, 9, 2, 4)
    qkv[:, :, 0], qkv[:, :, 1] = size, -size
    qkv.requires_grad_()
    mixed, logsumexp = kernel.attend(qkv, SCALE)
    even = qkv.detach()[:, :, 2].mean(1, keepdim=True).expand_as(mixed)
    torch.testing.assert_close(mixed, even)
    row = torch.rand(2, 9)
    carried = kernel.rollout_row(row, qkv, SCALE, logsumexp)
    torch.testing.assert_close(
        carried, row.mean(1)[:, None, None].expand_as(carried), rtol=1e-2, atol=0
    )
    slope = torch.linspace(-1, 1, mixed.numel()).view_as(mixed)
    (found,) = torch.autograd.grad((mixed * slope).sum(), qkv)
    double = qkv.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad((written_out(double)[0] * slope).sum(), double)
    largest = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-2 * largest)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_what_is_no_number_shows(value: float, part: int) -> None:
    qkv = projection(2, 9, 2, 4)
    qkv[1, 3, part, 0, 2] = value
    mixed, _ = kernel.attend(qkv, SCALE)
    expected, _, _ = written_out(qkv)
    assert torch.equal(torch.isfinite(mixed), torch.isfinite(expected))
    assert not torch.isfinite(mixed).all()


def test_input_is_left_as_it_was() -> None:
    qkv, row = projection(2, 9, 2, 4).requires_grad_(), torch.rand(2, 9)
    before = qkv.detach().clone(), row.clone()
    mixed, logsumexp = kernel.attend(qkv, SCALE)
    mixed.sum().backward()
    kernel.rollout_row(row, qkv, SCALE, logsumexp)
    assert torch.equal(qkv, before[0])
    assert torch.equal(row, before[1])


# ------------------------------------------------------------------ without gradients

BOTH = pytest.mark.parametrize(
    "instruction",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(not kernel.has_instruction(), reason="no AVX512_BF16 here"),
        ),
    ],
)


@pytest.mark.parametrize("shape", [(0, 3, 1, 12), (1, 1, 1, 12), (2, 70, 3, 12), (3, 24, 2, 5)])
@pytest.mark.parametrize("size", [0.5, 2.0, 30.0])
def test_weights_of_all_heads(shape: tuple[int, ...], size: float) -> None:
    qkv = projection(*shape, size=size)
    mixed, mean, logsumexp = kernel.attend_once(qkv, SCALE, mean=True, logsumexp=True)
    expected, sums = kernel.attend(qkv, SCALE)
    assert torch.equal(mixed, expected)
    assert torch.equal(logsumexp, sums)
    assert kernel.attend_once(qkv, SCALE)[1:] == (None, None)
    tolerance = 2e-6 * (1 + size) ** 2
    weights = written_out(qkv)[2].mean(1)
    torch.testing.assert_close(mean.double(), weights, rtol=0, atol=tolerance)
    torch.testing.assert_close(mean.sum(2), torch.ones(shape[0], shape[1]))


@BOTH
@pytest.mark.parametrize("shape", [(0, 3, 1, 12), (1, 1, 1, 12), (2, 70, 3, 12), (3, 24, 2, 5)])
@pytest.mark.parametrize("size", [0.5, 2.0, 30.0])
def test_attention_on_bfloat16(
    shape: tuple[int, ...], size: float, instruction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "has_instruction", lambda: instruction)
    qkv = projection(*shape, size=size).bfloat16()
    before = qkv.clone()
    mixed, mean, logsumexp = kernel.attend_once(qkv, SCALE, mean=True, logsumexp=True)
    expected, sums, weights = written_out(qkv)
    assert mixed.dtype == mean.dtype == torch.bfloat16
    assert logsumexp.dtype == torch.float32
    # Inputs are exact, and sums are in single precision: what is left is one rounding or two.
    torch.testing.assert_close(mixed.double(), expected, rtol=4e-3, atol=4e-3 * size)
    torch.testing.assert_close(mean.double(), weights.mean(1), rtol=6e-3, atol=1e-6)
    torch.testing.assert_close(logsumexp.double() * float(np.log(2)), sums, rtol=1e-5, atol=2e-4)
    row = torch.rand(shape[:2])
    carried = kernel.rollout_row(row, qkv, SCALE, logsumexp)
    products = torch.einsum("ni,nhij->nhj", row.double(), weights)
    torch.testing.assert_close(carried.double(), products, rtol=1e-3, atol=1e-6)
    assert torch.equal(qkv, before)


@BOTH
@pytest.mark.parametrize("size", [3.0, 300.0])
def test_very_small_scores_on_bfloat16(
    size: float, instruction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "has_instruction", lambda: instruction)
    qkv = projection(2, 9, 2, 4).bfloat16()
    qkv[:, :, 0], qkv[:, :, 1] = size, -size
    mixed, mean, _ = kernel.attend_once(qkv, SCALE, mean=True)
    even = qkv.float()[:, :, 2].mean(1, keepdim=True).expand_as(mixed)
    torch.testing.assert_close(mixed.float(), even, rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(mean.float(), torch.full((2, 9, 9), 1 / 9), rtol=4e-3, atol=0)


@BOTH
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_what_is_no_number_shows_on_bfloat16(
    value: float, part: int, instruction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "has_instruction", lambda: instruction)
    qkv = projection(2, 9, 2, 4).bfloat16()
    qkv[1, 3, part, 0, 2] = value
    mixed, _, _ = kernel.attend_once(qkv, SCALE)
    assert torch.isfinite(mixed[0]).all()
    assert not torch.isfinite(mixed[1]).all()
