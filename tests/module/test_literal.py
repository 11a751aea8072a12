"""The yardstick itself, against the model's definition."""

import torch
from _literal import Block, rollout
from torch.testing import assert_close


def test_blocks_agree_with_torchs_own_encoder_layer():
    torch.manual_seed(0)
    block = Block(8, 2).double()
    t = torch.randn(7, 6, 8, dtype=torch.float64)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    reference = torch.nn.TransformerEncoderLayer(
        8,
        2,
        32,
        dropout=0,
        activation="gelu",
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=True,
    ).double()
    names = {"attn.qkv.": "self_attn.in_proj_", "attn.proj.": "self_attn.out_proj."}
    names |= {"mlp.fc1.": "linear1.", "mlp.fc2.": "linear2."}
    state = block.state_dict()
    for name, torch_name in names.items():
        for kind in ("weight", "bias"):
            state[torch_name + kind] = state.pop(name + kind)
    reference.load_state_dict(state)
    # In training mode torch keeps to its plain path, and at dropout 0 nothing is random.
    tokens, weights = block(t)
    assert_close(tokens, reference.train()(t))
    _, expected = reference.self_attn(
        *3 * [reference.norm1(t)], average_attn_weights=False
    )
    assert_close(weights, expected.detach())


def test_rollout_by_hand():
    lower = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    upper = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    per_head = torch.tensor([[0.1, -0.1], [-0.1, 0.1]], dtype=torch.float64)
    heads = torch.stack([lower + per_head, lower - per_head])[
        None
    ]  # two heads with mean `first`
    joint = rollout([heads, upper[None, None]])
    # rows of (A + 1) / 2: [.6 .4] and [.3 .7] first, [.75 .25] and [.5 .5] on top of it
    expected = torch.tensor([[[0.525, 0.475], [0.45, 0.55]]], dtype=torch.float64)
    assert_close(joint, expected)
