"""Self-attention and the rollout row, against attention that is written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica.module import _attention
from tosica.module._attention import AttentionTrace, SelfAttention, WrittenTrace, carry_row

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
    out, trace = attention.traced(t)
    torch.testing.assert_close(out, expected)
    from_trace = (trace.query @ trace.key.transpose(-2, -1) - trace.logsumexp[..., None]).exp()
    torch.testing.assert_close(from_trace, weights)
    class_token, row = attention.class_token(t)
    torch.testing.assert_close(class_token, expected[:, 0])
    torch.testing.assert_close(row, weights.mean(1)[:, 0])


@pytest.mark.parametrize("way", ["forward", "traced", "class_token"])
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
@settings(max_examples=40, deadline=None)
def test_carry_row_is_a_product(n: int, heads: int, n_tokens: int, width: int, seed: int) -> None:
    trace, weights = trace_of(n, heads, n_tokens, width, seed=seed)
    row = torch.rand(n, n_tokens, dtype=torch.float64)
    row[torch.rand(n, n_tokens) < 0.3] = 0
    got = carry_row(row, trace)
    torch.testing.assert_close(got, (row[:, None] @ weights)[:, 0], rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(got.sum(1), row.sum(1))


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES.items())
def test_carry_row_in_each_precision(dtype: torch.dtype, tolerance: float) -> None:
    trace, weights = trace_of(6, 4, 50, 12, dtype=dtype, size=0.7)
    row = torch.rand(6, 50, dtype=torch.float64)
    row /= row.sum(1, keepdim=True)
    got = carry_row(row.to(torch.promote_types(dtype, torch.float32)), trace)
    expected = (row[:, None] @ weights)[:, 0]
    torch.testing.assert_close(got.double(), expected, rtol=5 * tolerance, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_zeros_in_a_row_stay_without_effect(dtype: torch.dtype) -> None:
    trace, weights = trace_of(3, 2, 8, 4, dtype=dtype)
    row = torch.zeros(3, 8, dtype=dtype)
    row[0, 2] = 1  # one token only
    row[1, :4] = 0.25  # half of them; the last cell has none
    got = carry_row(row, trace)
    assert torch.isfinite(got).all()
    expected = (row.double()[:, None] @ weights)[:, 0]
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sharp_attention_neither_overflows_nor_vanishes(dtype: torch.dtype) -> None:
    trace, weights = trace_of(3, 2, 20, 4, dtype=dtype, size=12)
    assert (trace.query @ trace.key.transpose(-2, -1)).abs().max() > 500
    row = torch.full((3, 20), 0.05, dtype=dtype)
    got = carry_row(row, trace)
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
    in_the_open = _attention._attend_in_the_open(query, key, value)
    for one, other in zip(kernel, in_the_open, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_open_way_is_taken_where_there_is_no_kernel() -> None:
    query = torch.empty(2, 3, 7, 4, device="meta")
    mixed, logsumexp = _attention._attend(query, query, torch.empty(2, 3, 7, 5, device="meta"))
    assert mixed.shape == (2, 3, 7, 5)
    assert logsumexp.shape == (2, 3, 7)


def test_layers_do_not_depend_on_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, t = make(), tokens()
    out, trace = attention.traced(t)
    row = torch.full((5, 9), 1 / 9, dtype=torch.float64)
    carried = carry_row(row, trace)
    monkeypatch.setattr(_attention, "_attend", _attention._attend_in_the_open)
    other, other_trace = attention.traced(t)
    torch.testing.assert_close(other, out)
    torch.testing.assert_close(other_trace, trace)
    torch.testing.assert_close(carry_row(row, other_trace), carried)


# ------------------------------------------------------------------ written out


@pytest.mark.parametrize("grad", [True, False])
def test_a_page_changes_nothing(grad: bool) -> None:
    attention, t = make(), tokens()
    row = torch.rand(5, 9, dtype=torch.float64)
    expected, weights = written_out(attention, t)
    with torch.set_grad_enabled(grad):
        out, trace = attention.traced(t, attention.page(t))
        assert isinstance(trace, WrittenTrace)
        torch.testing.assert_close(out, expected)
        carried = carry_row(row, trace)
    torch.testing.assert_close(carried, torch.einsum("ni,nij->nj", row, weights.mean(1)))


@pytest.mark.parametrize(("embed_dim", "n_heads"), [(12, 4), (48, 4), (7, 1), (4, 4)])
@pytest.mark.parametrize("n_tokens", [1, 2, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_page_of_any_shape(
    embed_dim: int, n_heads: int, n_tokens: int, dtype: torch.dtype
) -> None:
    attention, t = make(embed_dim, n_heads), tokens(n_tokens, embed_dim) / 2
    with torch.no_grad():
        expected, weights = written_out(attention, t)
    attention, t = attention.to(dtype), t.to(dtype)
    # Cells as they come out of a product: the first axis is not the slowest one.
    t = t.transpose(0, 1).contiguous().transpose(0, 1)
    page = attention.page(t)
    with torch.no_grad():
        out, trace = attention.traced(t, page)
        assert isinstance(trace, WrittenTrace)
        assert trace.exponential.data_ptr() == page.data_ptr()
        found = trace.exponential.view_as(weights) / trace.total[..., None]
    size = float(expected.abs().max())
    limits = {"rtol": 0.0, "check_dtype": False}
    torch.testing.assert_close(out, expected, atol=size * DTYPES[dtype], **limits)
    torch.testing.assert_close(found, weights, atol=DTYPES[dtype], **limits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_that_are_all_very_small_take_the_other_way(dtype: torch.dtype) -> None:
    attention, t = make().to(dtype), 60 * tokens()[:, :1].expand(-1, 9, -1).to(dtype)
    with torch.no_grad():
        # A token's product with itself is negative now, and all tokens are one.
        attention.qkv.weight[12:24] = -attention.qkv.weight[:12]
        attention.qkv.bias.zero_()
        out, trace = attention.traced(t, attention.page(t))
        expected, _ = written_out(attention, t)
    assert isinstance(trace, AttentionTrace)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-3)


def test_gradients_pass_a_page() -> None:
    attention, t = make(), tokens().requires_grad_()
    parameters = [t, *attention.parameters()]
    out, _ = attention.traced(t, attention.page(t))
    expected = torch.autograd.grad(written_out(attention, t)[0].square().sum(), parameters)
    found = torch.autograd.grad(out.square().sum(), parameters)
    for gradient, right in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, right)


def test_a_larger_page_serves_fewer_cells() -> None:
    attention, t = make(), tokens()
    with torch.no_grad():
        out, trace = attention.traced(t[:2], attention.page(t))
    torch.testing.assert_close(out, written_out(attention, t)[0][:2])
    assert trace.total.shape == (2, 4, 9)


@pytest.mark.parametrize("size", [40.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_scores_take_the_other_way(size: float, dtype: torch.dtype) -> None:
    attention, t = make().to(dtype), size * tokens().to(dtype)
    with torch.no_grad():
        expected, _ = written_out(attention, t)
        out, trace = attention.traced(t, attention.page(t))
    assert isinstance(trace, AttentionTrace)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-3)


def test_no_page_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, t = make(), tokens()
    assert attention.page(t.bfloat16()) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert attention.page(t.float()) is None
    assert attention.page(t.to("meta")) is None
    assert len(attention.page(t)) == 5
    monkeypatch.setattr(_attention, "_CACHE", 4 * 9 * 9 * 8 * 2)
    assert len(attention.page(t)) == 2
    monkeypatch.setattr(_attention, "_CACHE", 4 * 9 * 9 * 8 - 1)
    assert attention.page(t) is None
