"""The contract of errors: every parameter of every public function × wrong values.

A wrong type is a TypeError, a wrong value a ValueError, a missing name a KeyError. The message is
one sentence about the parameter, and the data are unchanged.
"""

from __future__ import annotations

import inspect
import re
import warnings
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import pytest
from anndata import AnnData
from conftest import TOY_SETS, make_toy
from mudata import MuData
from wrong_input.parameters import BY_FUNCTION, kind
from wrong_input.test_declared import declared, public_functions
from wrong_input.world import World, arguments, function, make_world

import tosica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wrong_input.kinds import Wrong

_PACKAGES = ("pp", "gs", "onto", "tl", "pl", "get", "io", "datasets")
# Words of errors that come from Python, numpy, pandas or torch themselves.
_RAW = re.compile(r"not supported between|object has no attribute|unexpected keyword|object is not")


def public_names() -> list[str]:
    """All public functions, and the methods that tosica's model class has of its own."""
    functions = [f"{p}.{name}" for p in _PACKAGES for name in getattr(tosica, p).__all__]
    methods = [
        f"TOSICA.{name}"
        for name in dir(tosica.TOSICA)
        if not name.startswith("_")
        and callable(member := getattr(tosica.TOSICA, name))
        and getattr(member, "__module__", "").startswith("tosica.")
    ]
    return ["report", *functions, "TOSICA", *methods]


def _called(name: str) -> Any:
    package, _, rest = name.partition(".")
    owner = tosica.TOSICA if package == "TOSICA" else getattr(tosica, package)
    return getattr(owner, rest) if rest else owner


def parameters(name: str) -> list[str]:
    """Parameters of a function, without ``self`` and ``**kwargs``."""
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = inspect.signature(_called(name)).parameters.values()
    return [p.name for p in found if p.kind not in variable and p.name != "self"]


def rows(name: str) -> Iterator[tuple[str, str, Wrong]]:
    """Rows of the table that concern a function: what it is, parameter, wrong value."""
    for parameter in parameters(name):
        if parameter in declared(public_functions().get(name, _called(name))):
            continue
        for wrong in kind(name, parameter) or ():
            yield f"{name}({parameter}={wrong.called or repr(wrong.value)})", parameter, wrong


NAMES = [name for name in public_names() if name != "tl.Evaluation"]  # users do not make these


def test_no_parameter_of_a_public_function_is_missing() -> None:
    missing = {
        f"{name}({parameter})"
        for name in NAMES
        for parameter in parameters(name)
        if kind(name, parameter) is None
        and parameter not in declared(public_functions().get(name, _called(name)))
    }
    assert missing == set()
    assert set(NAMES) == set(BY_FUNCTION)


@pytest.fixture(scope="module")
def world(
    _toy: AnnData,
    toy_model: tosica.TOSICA,
    tmp_path_factory: pytest.TempPathFactory,
    contents: Callable[..., Any],
) -> Iterator[World]:
    with warnings.catch_warnings(action="ignore"):
        folder = tmp_path_factory.mktemp("wrong_input")
        made = make_world(make_toy(30, seed=1), _toy.copy(), toy_model, TOY_SETS, folder)
    before = _state(made, contents)
    yield made
    # Every call was refused, so nothing at all may have changed.
    after = _state(made, contents)
    assert [name for name in before if before[name] != after[name]] == []


def _state(world: World, contents: Callable[..., Any]) -> dict[str, Any]:
    state: dict[str, Any] = {name: contents(adata) for name, adata in world.data().items()}
    weights = world.untrained.module.state_dict()
    state["weights"] = {name: value.numpy().tobytes() for name, value in weights.items()}
    state["is trained"] = world.untrained.is_trained_
    state["files"] = sorted(path.name for path in world.folder.iterdir())
    return state


@pytest.mark.parametrize("name", NAMES)
def test_wrong_input(
    name: str, world: World, contents: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    data = [each for each in arguments(world, name).values() if isinstance(each, AnnData | MuData)]
    before = [contents(each) for each in data]
    figures = plt.get_fignums()
    found = {row: _complaint(world, name, parameter, wrong) for row, parameter, wrong in rows(name)}
    assert {row: complaint for row, complaint in found.items() if complaint} == {}
    assert before == [contents(each) for each in data]
    assert plt.get_fignums() == figures


def _complaint(world: World, name: str, parameter: str, wrong: Wrong) -> str:
    """Call a function with a wrong value, and say what is wrong with its refusal, if anything."""
    value = wrong.value(world) if callable(wrong.value) else wrong.value
    given = arguments(world, name) | {parameter: value}
    try:
        with warnings.catch_warnings(action="ignore"):
            function(world, name)(**given)
    except Exception as error:
        message = str(error.args[0]) if error.args else ""
        if type(error) is not wrong.error:
            return f"{type(error).__name__} instead of {wrong.error.__name__}: {message}"
        is_sentence = message[-1:] in (".", "?") and not _RAW.search(message)
        expected = wrong.sentence.replace("{name}", parameter)
        return "" if is_sentence and re.search(expected, message) else message
    return "accepted"
