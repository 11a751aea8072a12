"""The encoder's short cuts, against full layers and full rollout maps."""

from __future__ import annotations

import pytest
import torch

from tosica.module import Encoder, _attention

DIM, HEADS = 12, 4


def make(n_layers: int) -> Encoder:
    torch.manual_seed(n_layers)
    encoder = Encoder(DIM, HEADS, n_layers).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return encoder


def tokens(n_cells: int = 5, n_tokens: int = 17) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n_cells, n_tokens, DIM, generator=generator, dtype=torch.float64)


def in_full(encoder: Encoder, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All tokens through all layers, and the whole rollout map, (n, 1 + P, 1 + P)."""
    t = torch.cat([encoder.class_token.expand(len(t), 1, -1), t], 1)
    joint = torch.eye(t.shape[1], dtype=t.dtype).expand(len(t), -1, -1)
    for block in encoder.blocks:
        query, key, _ = _attention._split_heads(block.attention._project(block.norm1(t)))
        weights = (query @ key.transpose(-2, -1) * block.attention.scale).softmax(-1).mean(1)
        joint = (weights + torch.eye(t.shape[1], dtype=t.dtype)) / 2 @ joint
        t = block(t)
    return encoder.norm(t), joint


@pytest.mark.parametrize("n_layers", [1, 2, 3, 4])
def test_the_class_token_needs_no_other_in_the_last_layer(n_layers: int) -> None:
    encoder, t = make(n_layers), tokens()
    expected, joint = in_full(encoder, t)
    latent, attention = encoder.rollout(t)
    torch.testing.assert_close(encoder(t), expected[:, 0])
    torch.testing.assert_close(latent, expected[:, 0])
    torch.testing.assert_close(attention, joint[:, 0, 1:])


@pytest.mark.parametrize("n_layers", [1, 3])
def test_attention_is_a_share(n_layers: int) -> None:
    _, attention = make(n_layers).rollout(tokens())
    assert (attention > 0).all()
    # What is missing to one is the class token's attention to itself, half or more in each layer.
    assert (attention.sum(1) < 1 - 0.5**n_layers).all()
    # Cells differ, and so do tokens, or the tests above would see little.
    assert attention.std(0).min() > 1e-4
    assert attention.std(1).min() > 1e-3


def test_attention_without_preference_is_even() -> None:
    encoder = make(2)
    with torch.no_grad():
        for block in encoder.blocks:
            block.attention.qkv.weight[: 2 * DIM] = 0
            block.attention.qkv.bias[: 2 * DIM] = 0
    _, attention = encoder.rollout(tokens(n_tokens=9))
    # (J / 10 + I) / 2, squared, is (3 J / 10 + I) / 4.
    torch.testing.assert_close(attention, torch.full_like(attention, 0.075))


def test_tokens_have_no_order() -> None:
    encoder, t = make(3), tokens()
    order = torch.randperm(t.shape[1], generator=torch.Generator().manual_seed(1))
    latent, attention = encoder.rollout(t)
    other_latent, other_attention = encoder.rollout(t[:, order])
    torch.testing.assert_close(other_latent, latent)
    torch.testing.assert_close(other_attention, attention[:, order])


def test_tokens_are_left_as_they_are() -> None:
    encoder, t = make(2), tokens()
    before = t.clone()
    encoder(t)
    encoder.rollout(t)
    assert torch.equal(t, before)


@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("kernel", [True, False])
def test_attention_has_no_gradient_but_the_latent_has(
    n_layers: int, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel:
        monkeypatch.setattr(_attention, "_attend", _attention._attend_unfused)
    encoder, t = make(n_layers), tokens().requires_grad_()
    latent, attention = encoder.rollout(t)
    assert not attention.requires_grad
    latent.square().sum().backward()
    assert t.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_precision_of_the_attention(dtype: torch.dtype, expected: torch.dtype) -> None:
    latent, attention = make(3).to(dtype).rollout(tokens().to(dtype))
    assert attention.dtype == expected
    assert latent.dtype == dtype


def test_weights_start_with_the_variance_that_layers_keep() -> None:
    torch.manual_seed(0)
    encoder = Encoder(48, 4, 2)
    for name, parameter in encoder.named_parameters():
        if "norm" in name:
            assert (parameter == (1 if name.endswith("weight") else 0)).all()
        elif name.endswith("bias"):
            assert (parameter == 0).all()
        elif name == "class_token":
            assert 0.014 < parameter.std() < 0.026
        else:
            expected = (2 / sum(parameter.shape)) ** 0.5
            assert 0.9 * expected < parameter.std() < 1.1 * expected


def test_without_the_rollout_nothing_is_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, t = make(2), tokens()
    expected, _ = in_full(encoder, t)
    monkeypatch.delattr(_attention.SelfAttention, "forward_with_trace")
    torch.testing.assert_close(encoder(t), expected[:, 0])
    with torch.inference_mode():
        torch.testing.assert_close(encoder(t), expected[:, 0].detach())
    with pytest.raises(AttributeError, match="forward_with_trace"):
        encoder.rollout(t)


@pytest.mark.parametrize("n_frozen", [1, 2])
def test_frozen_layers_pass_gradients_on(n_frozen: int) -> None:
    encoder, t = make(2).train(), tokens(40).requires_grad_()
    for block in list(encoder.blocks)[:n_frozen]:
        block.requires_grad_(requires_grad=False)
    expected, _ = in_full(encoder, t)
    (gradient,) = torch.autograd.grad(expected[:, 0].square().sum(), t)
    encoder(t).square().sum().backward()
    torch.testing.assert_close(t.grad, gradient)
    for name, weight in encoder.named_parameters():
        assert (weight.grad is not None) == weight.requires_grad, name


@pytest.mark.parametrize("n_layers", [1, 2, 3])
@pytest.mark.parametrize("n_cells_at_a_time", [0, 1, 2, 5])
def test_cells_at_a_time_change_nothing(n_layers: int, n_cells_at_a_time: int) -> None:
    encoder, t = make(n_layers), tokens()
    expected, joint = in_full(encoder, t)
    encoder.cache_bytes = n_cells_at_a_time * 4 * 18 * DIM * 8
    n_parts = -(-5 // max(n_cells_at_a_time, 1))
    assert len(encoder._parts(t)) == n_parts
    with torch.inference_mode():
        latent, attention = encoder.rollout(t)
        torch.testing.assert_close(encoder(t), expected[:, 0].detach())
    torch.testing.assert_close(latent, expected[:, 0].detach())
    torch.testing.assert_close(attention, joint[:, 0, 1:].detach())
