"""The whole network against the paper's model written out, and what training asks of it."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from _literal import LiteralTOSICA
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tosica.data import ModalitySlice
from tosica.module import REGISTRY_KEYS, MixedEmbedding, TokenLayout, TOSICAModule

N_LABELS = 3


class Net(NamedTuple):
    """Sizes of a network: genes, sizes of the gene sets, and so on."""

    n_genes: int
    sizes: list[int]
    n_unannotated: int = 1
    n_heads: int = 2
    head_dim: int = 3
    n_layers: int = 2
    seed: int = 0
    mixed: bool = False


ORDINARY = Net(n_genes=61, sizes=[5, 1, 30, 16, 17, 61, 24, 50, 3, 22], head_dim=5)


@st.composite
def nets(draw):
    n_genes = draw(st.integers(1, 60))
    size = st.one_of(st.just(1), st.just(n_genes), st.integers(1, n_genes))
    sizes = draw(st.lists(size, max_size=12))
    n_unannotated = draw(st.integers(0 if sizes else 1, 3))
    n_heads = draw(st.sampled_from([1, 2, 4]))
    head_dim = draw(st.integers(1 if n_heads > 1 else 2, 5))
    n_layers = draw(st.integers(1, 4))
    return Net(
        n_genes,
        sizes,
        n_unannotated,
        n_heads,
        head_dim,
        n_layers,
        draw(st.integers(0, 99)),
        draw(st.booleans()),
    )


def lay_out(
    indptr,
    genes,
    n_genes,
    mixed=False,
):
    """Tokens of RNA alone."""
    slices = (ModalitySlice(0, n_genes),)
    modality = np.zeros(len(indptr) - 1, dtype=np.int64)
    is_full = np.diff(indptr) == n_genes
    return TokenLayout(indptr, genes, slices, modality, is_full, mixed=mixed)


def make(net, **kwargs):
    """Make a module in double precision with weights far enough from 0 to matter."""
    rng = np.random.default_rng(net.seed)
    torch.manual_seed(net.seed)
    sets = [np.sort(rng.choice(net.n_genes, size, replace=False)) for size in net.sizes]
    sets += [np.arange(net.n_genes)] * net.n_unannotated
    indptr = np.cumsum([0, *map(len, sets)])
    genes = np.concatenate(sets)
    tokens = lay_out(indptr, genes, net.n_genes, net.mixed)
    sizes = {
        "embed_dim": net.n_heads * net.head_dim,
        "n_heads": net.n_heads,
        "n_layers": net.n_layers,
    }
    module = TOSICAModule(tokens, N_LABELS, **sizes, **kwargs).double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name != "embedding.weight":
                parameter.add_(0.2 * torch.randn_like(parameter))
    return module.eval()


def cells(net, n_cells=4):
    rng = np.random.default_rng(net.seed + 1)
    return torch.from_numpy(rng.gamma(0.5, 2.0, (n_cells, net.n_genes)))


def in_literal_terms(module, tensors):
    """Name and lay out tensors of a module's parameters (or their gradients) as the literal does.

    The one difference in layout: the embedding's weight of the pair (gene, set) goes to the gene's
    row and the set's columns of a dense matrix that is zero elsewhere.
    """
    embedding = module.embedding
    pairs = tensors["embedding.weight"]
    token = torch.repeat_interleave(
        torch.arange(embedding.n_tokens), embedding.indptr.diff()
    )
    dense = pairs.new_zeros(embedding.n_genes, embedding.n_tokens, embedding.embed_dim)
    dense[embedding.genes, token] = pairs
    literal = {
        "embedding.weight": dense.flatten(1),
        "embedding.bias": tensors["embedding.bias"].flatten(),
        "cls_token": tensors["encoder.class_token"][None, None],
    }
    for name, tensor in tensors.items():
        if name.startswith(("encoder.blocks.", "encoder.norm.", "head.")):
            literal_name = name.removeprefix("encoder.")
            literal_name = literal_name.replace(".attention.", ".attn.").replace(
                ".fc", ".mlp.fc"
            )
            literal[literal_name] = tensor
    return literal


def as_literal(module):
    """The same model, written out."""
    embedding = module.embedding
    encoder = module.encoder
    token = torch.repeat_interleave(
        torch.arange(embedding.n_tokens), embedding.indptr.diff()
    )
    mask = torch.zeros(embedding.n_genes, embedding.n_tokens)
    mask[embedding.genes, token] = 1
    literal = LiteralTOSICA(
        mask,
        module.head.out_features,
        embed_dim=embedding.embed_dim,
        n_heads=encoder.blocks[0].attention.n_heads,
        n_layers=len(encoder.blocks),
        scrambled_tokens=isinstance(embedding, MixedEmbedding),
    )
    literal.to(module.head.weight.dtype)
    values = {name: p.detach() for name, p in module.named_parameters()}
    literal.load_state_dict(in_literal_terms(module, values))
    return literal.eval()


def fields(x, codes):
    return {
        REGISTRY_KEYS.X_KEY: x,
        REGISTRY_KEYS.LABELS_KEY: torch.tensor(codes)[:, None],
    }


# ------------------------------------------------------------------ the paper's model, exactly


@given(nets())
@example(Net(n_genes=1, sizes=[1], n_unannotated=0))
@example(Net(n_genes=9, sizes=[], n_unannotated=3))
@example(
    Net(n_genes=9, sizes=[9, 9], n_unannotated=0, n_heads=4, head_dim=1, n_layers=4)
)
@example(ORDINARY)
@example(ORDINARY._replace(mixed=True))
@settings(max_examples=12)
def test_every_number_is_the_papers(net):
    module = make(net)
    x = cells(net)
    got = module.annotate(x)
    expected = as_literal(module)(x)
    for tensor, reference in zip(got, expected, strict=True):
        assert_close(tensor, reference, rtol=1e-10, atol=1e-10)
    plain = module.generative(**module.inference(x))["logits"]
    assert_close(plain, expected[1], rtol=1e-10, atol=1e-10)
    latent, logits, attention = module.annotate(x, attention=False)
    assert attention is None
    assert_close((latent, logits), expected[:2], rtol=1e-10, atol=1e-10)


@given(nets())
@example(Net(n_genes=1, sizes=[1], n_unannotated=0))
@example(Net(n_genes=9, sizes=[9, 2], n_unannotated=3, n_layers=1))
@example(ORDINARY)
@example(ORDINARY._replace(mixed=True))
@settings(max_examples=8)
def test_every_gradient_is_the_papers(net):
    module = make(net).train()
    x = cells(net).requires_grad_()
    literal = as_literal(module)
    literal_x = cells(net).requires_grad_()
    label = torch.arange(len(x)) % N_LABELS
    outputs = module.inference(x)
    F.cross_entropy(module.generative(**outputs)["logits"], label).backward()
    F.cross_entropy(literal(literal_x)[1], label).backward()
    got = in_literal_terms(
        module, {name: p.grad for name, p in module.named_parameters()}
    )
    expected = {name: p.grad for name, p in literal.named_parameters()}
    assert set(got) == set(expected)
    for name, gradient in expected.items():
        message = name.replace("%", "")
        assert_close(
            got[name],
            gradient,
            rtol=1e-8,
            atol=1e-10,
            msg=lambda m, n=message: f"{n}: {m}",
        )
    assert_close(x.grad, literal_x.grad, rtol=1e-8, atol=1e-10)


# ------------------------------------------------------------------ cells keep to themselves


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)]
)
def test_a_cell_is_annotated_alike_in_any_company(dtype, tolerance):
    module = make(ORDINARY).to(dtype)
    x = cells(ORDINARY, 13).to(dtype)
    together = module.annotate(x)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    shuffled = module.annotate(x[order])
    for size in (1, 5):
        annotations = [module.annotate(block) for block in x.split(size)]
        for tensor, *pieces in zip(together, *annotations, strict=True):
            assert_close(torch.cat(pieces), tensor, rtol=tolerance, atol=tolerance)
    for tensor, permuted in zip(together, shuffled, strict=True):
        assert_close(permuted, tensor[order], rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------ lower precision


@pytest.mark.parametrize("how", ["weights", "autocast"])
def test_bfloat16_agrees_roughly(how):
    module = make(ORDINARY).float()
    x = cells(ORDINARY, 20).float()
    expected = module.annotate(x)
    if how == "weights":
        module.embedding, module.encoder, module.head = (
            copy.deepcopy(layer).bfloat16()
            for layer in (module.embedding, module.encoder, module.head)
        )
        got = module.annotate(x.bfloat16())
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = module.annotate(x)
    assert got.attention.dtype == torch.float32
    assert_close(got.attention, expected.attention, rtol=0.15, atol=5e-3)
    assert_close(got.logits.float(), expected.logits, rtol=0.1, atol=0.1)
    probabilities = [
        module.calibrated(seen.logits).softmax(1) for seen in (got, expected)
    ]
    assert_close(*probabilities, rtol=0, atol=0.05)


# ------------------------------------------------------------------ what training asks


def test_loss_is_cross_entropy_of_labeled_cells():
    logits = torch.randn(3, N_LABELS, dtype=torch.float64)
    # The code behind the last label is that of cells without one.
    codes = [0, N_LABELS, 1]
    loss = make(ORDINARY).loss(fields(torch.zeros(3, 1), codes), {}, {"logits": logits})
    assert_close(loss.loss, F.cross_entropy(logits[::2], torch.tensor([0, 1])))
    assert (loss.true_labels.tolist(), loss.n_obs_minibatch) == (codes, 3)
    assert_close(loss.logits, logits)


@pytest.mark.parametrize("shares", [None, [0.5, 0.3, 0.2]])
def test_label_smoothing_mixes_in_every_label_as_often_as_it_is_drawn(shares):
    logits = torch.tensor([[4.0, 0.0, -1.0]])
    frequencies = torch.tensor(shares or [1 / 3] * 3)
    options = {} if shares is None else {"label_shares": frequencies}
    loss = make(ORDINARY).loss(
        fields(torch.zeros(1, 1), [0]),
        {},
        {"logits": logits},
        label_smoothing=0.3,
        **options,
    )
    expected = F.cross_entropy(
        logits + frequencies.log(), 0.7 * torch.eye(3)[:1] + 0.3 * frequencies
    )
    assert_close(loss.loss, expected)


def test_gene_dropout_hides_genes_and_scales_up_the_rest():
    net = Net(n_genes=200, sizes=[], n_unannotated=1)
    module = make(net)
    seen = []
    module.embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.ones(50, 200, dtype=torch.float64)
    torch.manual_seed(0)
    module.inference(x, gene_dropout=0.25, complete_cells=0.2)
    hidden = seen[0][(seen[0] != 1).any(1)]
    assert len(hidden) == pytest.approx(40, abs=6)
    assert_close(hidden.unique(), torch.tensor([0.0, 4 / 3]).double())
    assert abs((hidden == 0).double().mean() - 0.25) < 0.02
    assert (hidden.std(0) > 0).all()  # drawn for each cell
    assert (x == 1).all()
    module.inference(x)
    assert seen[1] is x


# ------------------------------------------------------------------ the linear branch beside it


def with_branch(net=ORDINARY):
    """A module whose linear branch was fitted, and reads high values as lower ones."""
    module = make(net, linear=True)
    rng = np.random.default_rng(net.seed)
    branch = module.linear
    branch.weights.copy_(torch.from_numpy(rng.normal(size=branch.weights.shape)))
    branch.bias.copy_(torch.from_numpy(rng.normal(size=N_LABELS)))
    branch.clip_max.copy_(torch.from_numpy(rng.uniform(0.5, 2, net.n_genes)))
    branch.mean.copy_(torch.from_numpy(rng.random(net.n_genes)))
    branch.loadings = torch.from_numpy(rng.normal(size=(net.n_genes, 3)))
    return module


def test_logits_are_the_papers_and_the_branchs_of_bounded_expression():
    module = with_branch()
    x = cells(ORDINARY)
    bounded = torch.minimum(x, module.linear.clip_max)
    assert (bounded < x).any()
    latent, logits, attention = module.annotate(x)
    expected = as_literal(module)(bounded)
    assert_close(
        (latent, attention), (expected[0], expected[2]), rtol=1e-10, atol=1e-10
    )
    summed = expected[1] + module.linear(bounded)
    plain = module.generative(**module.inference(x))["logits"]
    for scores in (logits, module.annotate(x, attention=False).logits, plain):
        assert_close(scores, summed, rtol=1e-10, atol=1e-10)
    # Without a branch, and until it is fitted, no value is too large.
    for unfitted in (make(ORDINARY), make(ORDINARY, linear=True)):
        assert_close(unfitted.clip(1e6 * x), 1e6 * x, rtol=0, atol=0)


@pytest.mark.parametrize("attention", [False, True])
def test_only_the_branch_expects_something_of_genes_that_are_lacking(
    attention,
):
    module = with_branch()
    measured = torch.arange(61) % 4 > 0
    x = cells(ORDINARY) * measured
    imputed = module.annotate(x, attention=attention, measured=measured)
    zeros = module.annotate(x, attention=attention)
    assert_close(imputed.latent, zeros.latent, rtol=0, atol=0)
    if attention:
        assert_close(imputed.attention, zeros.attention, rtol=0, atol=0)
    added = imputed.logits - module.head(imputed.latent)
    assert_close(added, module.linear(x, measured), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(imputed.logits, zeros.logits)


def test_the_network_learns_as_if_there_were_no_branch():
    module = with_branch()
    alone = make(ORDINARY)
    module.linear.clip_max.fill_(torch.inf)
    tensors = fields(cells(ORDINARY), [0, 1, 2, 0])
    losses = [network.train()(tensors)[2].loss for network in (module, alone)]
    assert_close(*losses, rtol=0, atol=0)
    with torch.no_grad():
        seen = module.eval()(tensors)[1]["logits"]
    assert_close(seen, module.annotate(cells(ORDINARY)).logits)


def test_weights_of_pairs_in_older_models_are_summed():
    module = with_branch()
    state = module.state_dict()
    genes = module.embedding.genes
    state["linear.weight"] = torch.rand(N_LABELS, len(genes)).double()
    expected = torch.zeros_like(state.pop("linear.weights"))
    for pair, gene in enumerate(genes):
        expected[:, gene] += state["linear.weight"][:, pair]
    module.load_state_dict(state)
    assert_close(module.linear.weights, expected)


# ------------------------------------------------------------------ tokens that mix gene sets


def test_some_of_the_mixed_tokens_are_kept():
    net = Net(n_genes=30, sizes=list(range(5, 16)), head_dim=2, mixed=True)
    ours = make(net).embedding
    x = cells(net, 3)
    full = ours(x).detach()
    seen = set()
    for _ in range(20):
        subset = ours(x, keep=0.25)
        assert subset.shape == (3, 3, 4)
        same = (subset[:, :, None] - full[:, None]).abs().amax((0, 3)) < 1e-12
        assert same.sum(1).tolist() == [1, 1, 1]
        tokens = same.int().argmax(1).tolist()
        assert len(set(tokens)) == 3
        seen |= set(tokens)
    # No token is fully connected once mixed, so that none is spared.
    assert seen == set(range(12))
    assert ours(x, keep=0.01).shape == (3, 1, 4)


# ------------------------------------------------------------------ tokens of several modalities
