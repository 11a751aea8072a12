"""Compiled training steps, and what happens where nothing can be compiled."""

from __future__ import annotations

import shutil
import warnings

import pytest
import torch

from tosica.model import _device as _compile
from tosica.module import Encoder

CPU = torch.device("cpu")
# Compiled sums run in another order.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def make() -> tuple[Encoder, torch.Tensor]:
    torch.manual_seed(0)
    return Encoder(8, 2, 1), torch.randn(3, 5, 8)


def no_compiler(*args, **kwargs):
    def fail(*args, **kwargs):
        raise RuntimeError("No working C++ compiler found\nand a long story")

    return fail


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_steps_are_the_same_steps():
    encoder, tokens = make()
    encoder(tokens).square().sum().backward()
    expected = {name: p.grad.clone() for name, p in encoder.named_parameters()}
    encoder.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's compiler has much to say of its own parts
        with _compile.compiled(encoder, CPU):
            assert "forward" in vars(encoder)
            encoder(tokens).square().sum().backward()
            with torch.no_grad():
                latent = encoder(tokens)
    assert "forward" not in vars(encoder)
    torch.testing.assert_close(latent, encoder(tokens), **CLOSE)
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], **CLOSE)


@pytest.mark.slow  # imports the compiler
def test_without_a_compiler_there_is_one_warning(toy, toy_query, train, fast_plan, monkeypatch):
    expected = train(toy, max_epochs=3, plan_kwargs=fast_plan).predict(toy_query, soft=True)
    monkeypatch.setattr(torch, "compile", no_compiler)
    with pytest.warns(UserWarning, match=r"compile=True has no effect.*\(No working C\+\+ compiler found\)") as caught:
        model = train(toy, max_epochs=3, compile=True, plan_kwargs=fast_plan)
    assert sum("compile" in str(w.message) for w in caught) == 1
    assert (model.predict(toy_query, soft=True) == expected).all(axis=None)


def test_the_encoder_is_given_back_after_a_failure(monkeypatch):
    encoder, _ = make()
    monkeypatch.setattr(torch, "compile", lambda function: function)
    with pytest.raises(KeyboardInterrupt), _compile.compiled(encoder, CPU):
        raise KeyboardInterrupt
    assert "forward" not in vars(encoder)
