"""Self-attention and the rollout row, against attention that is written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica.module import _attention
from tosica.module._attention import AttentionTrace, KernelTrace, SelfAttention, rollout_step

DTYPES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2}


def make(embed_dim: int = 12, n_heads: int = 4, seed: int = 0) -> SelfAttention:
    torch.manual_seed(seed)
    attention = SelfAttention(embed_dim, n_heads).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(0.6 * torch.randn_like(parameter))
    return attention


def tokens(n_tokens: int = 9, embed_dim: int = 12, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(5, n_tokens, embed_dim, generator=generator, dtype=torch.float64)


def written_out(attention: SelfAttention, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention head by head: the tokens, and the (n, H, T, T) weights."""
    n_heads, width = attention.n_heads, attention.head_dim
    query, key, value = attention.qkv(t).chunk(3, -1)
    mixed, weights = [], []
    for h in range(n_heads):
        own = slice(h * width, (h + 1) * width)
        scores = query[..., own] @ key[..., own].transpose(1, 2) / width**0.5
        weights.append(scores.softmax(-1))
        mixed.append(weights[-1] @ value[..., own])
    return attention.proj(torch.cat(mixed, -1)), torch.stack(weights, 1)


def trace_of(
    *shape: int, dtype: torch.dtype = torch.float64, size: float = 1.0, seed: int = 0
) -> tuple[AttentionTrace, torch.Tensor]:
    """Make a random trace of shape (n, H, T, e) and its weights, averaged over the heads."""
    generator = torch.Generator().manual_seed(seed)
    query, key = (
        size * torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    scores = query @ key.transpose(-2, -1)
    trace = AttentionTrace(query.to(dtype), key.to(dtype), scores.logsumexp(-1).to(dtype))
    return trace, scores.softmax(-1).mean(1)


# ------------------------------------------------------------------ a layer


@pytest.mark.parametrize(("embed_dim", "n_heads"), [(12, 4), (6, 2), (7, 1), (4, 4), (15, 3)])
@pytest.mark.parametrize("n_tokens", [1, 2, 9, 40])
def test_three_ways_through_a_layer(embed_dim: int, n_heads: int, n_tokens: int) -> None:
    attention, t = make(embed_dim, n_heads), tokens(n_tokens, embed_dim)
    expected, weights = written_out(attention, t)
    torch.testing.assert_close(attention(t), expected)
    out, trace = attention.forward_with_trace(t)
    torch.testing.assert_close(out, expected)
    from_trace = (trace.query @ trace.key.transpose(-2, -1) - trace.logsumexp[..., None]).exp()
    torch.testing.assert_close(from_trace, weights)
    class_token, row = attention.class_token(t)
    torch.testing.assert_close(class_token, expected[:, 0])
    torch.testing.assert_close(row, weights.mean(1)[:, 0])


@pytest.mark.parametrize("way", ["forward", "forward_with_trace", "class_token"])
def test_gradients_of_a_layer(way: str) -> None:
    attention, t = make(), tokens().requires_grad_()
    out = getattr(attention, way)(t)
    out = out if way == "forward" else out[0]
    reference, other = make(), tokens().requires_grad_()
    expected = written_out(reference, other)[0]
    expected = expected[:, 0] if way == "class_token" else expected
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(t.grad, other.grad)
    for one, two in zip(attention.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-8, atol=1e-10)


# ------------------------------------------------------------------ the rollout row


@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 30), st.integers(1, 9), st.integers(0, 99)
)
@settings(max_examples=40)
def test_carry_row_is_a_product(n: int, heads: int, n_tokens: int, width: int, seed: int) -> None:
    trace, weights = trace_of(n, heads, n_tokens, width, seed=seed)
    row = torch.rand(n, n_tokens, dtype=torch.float64)
    row[torch.rand(n, n_tokens) < 0.3] = 0
    got = rollout_step(row, trace)
    torch.testing.assert_close(got, (row[:, None] @ weights)[:, 0], rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(got.sum(1), row.sum(1))


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES.items())
def test_carry_row_in_each_precision(dtype: torch.dtype, tolerance: float) -> None:
    trace, weights = trace_of(6, 4, 50, 12, dtype=dtype, size=0.7)
    row = torch.rand(6, 50, dtype=torch.float64)
    row /= row.sum(1, keepdim=True)
    got = rollout_step(row.to(torch.promote_types(dtype, torch.float32)), trace)
    expected = (row[:, None] @ weights)[:, 0]
    torch.testing.assert_close(got.double(), expected, rtol=5 * tolerance, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_zeros_in_a_row_stay_without_effect(dtype: torch.dtype) -> None:
    trace, weights = trace_of(3, 2, 8, 4, dtype=dtype)
    row = torch.zeros(3, 8, dtype=dtype)
    row[0, 2] = 1  # one token only
    row[1, :4] = 0.25  # half of them; the last cell has none
    got = rollout_step(row, trace)
    assert torch.isfinite(got).all()
    expected = (row.double()[:, None] @ weights)[:, 0]
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sharp_attention_neither_overflows_nor_vanishes(dtype: torch.dtype) -> None:
    trace, weights = trace_of(3, 2, 20, 4, dtype=dtype, size=12)
    assert (trace.query @ trace.key.transpose(-2, -1)).abs().max() > 500
    row = torch.full((3, 20), 0.05, dtype=dtype)
    got = rollout_step(row, trace)
    assert torch.isfinite(got).all()
    # Scores of hundreds leave float32 some five digits.
    tolerance = 1e-10 if dtype == torch.float64 else 2e-3
    expected = (row.double()[:, None] @ weights)[:, 0]
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=1e-6)


# ------------------------------------------------------------------ the kernel and its stand-in


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES.items())
@pytest.mark.parametrize(("n_tokens", "width"), [(1, 1), (2, 3), (33, 5), (130, 12)])
def test_kernel_and_open_way_agree(
    dtype: torch.dtype, tolerance: float, n_tokens: int, width: int
) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, n_tokens, width, dtype=dtype) for _ in range(3))
    kernel = _attention._attend(query, key, value)
    in_the_open = _attention._attend_unfused(query, key, value)
    for one, other in zip(kernel, in_the_open, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_open_way_is_taken_where_there_is_no_kernel() -> None:
    query = torch.empty(2, 3, 7, 4, device="meta")
    mixed, logsumexp = _attention._attend(query, query, torch.empty(2, 3, 7, 5, device="meta"))
    assert mixed.shape == (2, 3, 7, 5)
    assert logsumexp.shape == (2, 3, 7)


def test_layers_do_not_depend_on_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, t = make(), tokens()
    out, trace = attention.forward_with_trace(t)
    row = torch.full((5, 9), 1 / 9, dtype=torch.float64)
    carried = rollout_step(row, trace)
    monkeypatch.setattr(_attention, "_attend", _attention._attend_unfused)
    other, other_trace = attention.forward_with_trace(t)
    torch.testing.assert_close(other, out)
    torch.testing.assert_close(other_trace, trace)
    torch.testing.assert_close(rollout_step(row, other_trace), carried)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES.items())
@pytest.mark.parametrize("part_size", [1, 6 * 4 * 50 * 7, 2**26])
def test_rollout_without_the_log_sum_exp(
    dtype: torch.dtype, tolerance: float, part_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_attention, "_PART_SIZE", part_size)
    trace, weights = trace_of(6, 4, 50, 12, dtype=dtype, size=0.7)
    row = torch.rand(6, 50, dtype=torch.float64)
    row /= row.sum(1, keepdim=True)
    given = row.to(torch.promote_types(dtype, torch.float32))
    got = rollout_step(given, trace._replace(logsumexp=None))
    expected = (row[:, None] @ weights)[:, 0]
    torch.testing.assert_close(got.double(), expected, rtol=5 * tolerance, atol=0)


def test_layers_where_torch_returns_no_log_sum_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, t = make(), tokens()
    expected, weights = written_out(attention, t)
    monkeypatch.setattr(_attention, "_returns_logsumexp", lambda _: False)
    out, trace = attention.forward_with_trace(t)
    assert trace.logsumexp is None
    torch.testing.assert_close(out, expected)
    row = torch.rand(5, 9, dtype=torch.float64)
    expected_row = torch.einsum("ni,nij->nj", row, weights.mean(1))
    torch.testing.assert_close(rollout_step(row, trace), expected_row)


# ------------------------------------------------------------------ which kernel


@pytest.mark.slow
def test_own_kernel_is_for_narrow_heads_in_single_precision_on_a_processor() -> None:
    t = tokens()
    for dtype, kind in {torch.float32: KernelTrace, torch.float64: AttentionTrace}.items():
        assert isinstance(make().to(dtype).forward_with_trace(t.to(dtype))[1], kind)
    with torch.autocast("cpu", torch.bfloat16):
        assert isinstance(make().float().forward_with_trace(t.float())[1], AttentionTrace)
    assert isinstance(make(64, 4).float().forward_with_trace(tokens(9, 64).float())[1], KernelTrace)
    assert isinstance(
        make(51, 3).float().forward_with_trace(tokens(9, 51).float())[1], AttentionTrace
    )
    on_meta = SelfAttention(12, 4).to("meta")
    assert isinstance(
        on_meta.forward_with_trace(torch.empty(2, 9, 12, device="meta"))[1], AttentionTrace
    )


@pytest.mark.slow
@pytest.mark.parametrize(("embed_dim", "n_heads"), [(12, 4), (48, 4), (7, 1), (4, 4), (51, 3)])
@pytest.mark.parametrize("n_tokens", [1, 2, 40])
def test_either_kernel_in_single_precision(embed_dim: int, n_heads: int, n_tokens: int) -> None:
    attention, t = make(embed_dim, n_heads), tokens(n_tokens, embed_dim) / 2
    row = torch.rand(5, n_tokens)
    expected, weights = written_out(attention, t)
    carried = torch.einsum("ni,nij->nj", row.double(), weights.mean(1))
    attention = attention.float()
    # Cells as they come out of a product: the first axis is not the slowest one.
    t = t.float().transpose(0, 1).contiguous().transpose(0, 1)
    out, trace = attention.forward_with_trace(t)
    size = float(expected.detach().abs().max())
    limits = {"rtol": 0.0, "check_dtype": False}
    torch.testing.assert_close(out, expected, atol=size * DTYPES[torch.float32], **limits)
    torch.testing.assert_close(attention(t), out, rtol=0, atol=size * DTYPES[torch.float32])
    torch.testing.assert_close(rollout_step(row, trace), carried, atol=1e-5, **limits)


@pytest.mark.parametrize(("embed_dim", "n_heads"), [(12, 4), (51, 3)])
@pytest.mark.parametrize("size", [40.0, 1e3])
def test_large_scores_in_single_precision(embed_dim: int, n_heads: int, size: float) -> None:
    attention, t = make(embed_dim, n_heads).float(), size * tokens(9, embed_dim).float()
    expected, _ = written_out(attention, t)
    out, trace = attention.forward_with_trace(t)
    assert torch.isfinite(trace.logsumexp).all()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-3)
