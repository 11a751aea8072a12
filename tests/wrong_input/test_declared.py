"""Every public function refuses wrong values of every declared parameter, before any work."""

import inspect
import re
from math import inf, nan

import numpy as np
import pytest
from anndata import AnnData
from mudata import MuData

import tosica
from tosica import TOSICA
from tosica import _validate as c
from tosica.model import AnnbatchReader

PACKAGES = ("pp", "gs", "onto", "tl", "pl", "get", "io", "datasets")

# Parameters that are checked where they are read, because that takes the data, and why.
UNDECLARED = {
    "pp.build_mask(gene_sets)": "a collection's name, a path, a dict or a table",
    "pp.build_mask(modalities)": "for a MuData only",
    "gs.map_genes(names)": "any iterable of names but one name",
    "onto.map_labels(mapping)": "labels must be those of the column, terms those of the ontology",
    "tl.annotate_file(client)": "dask need not be installed",
    "TOSICA.for_query(gene_sets)": "as those of build_mask, to which they are handed on",
    "TOSICA.infer(indices)": "positions must be those of cells",
    "TOSICA.load_query_data(reference_model)": "a model or its folder",
    "TOSICA.load_query_data(unlabeled_category)": "labels have any type",
    "TOSICA.setup_mudata(mdata)": "an AnnData is told where to go",
    "TOSICA.setup_mudata(modalities)": "modalities must be those of the data",
    "TOSICA.train(plan_kwargs)": "each setting has a check of its own",
}
# Devices are those of torch and Lightning, which say what they know.
OF_DEVICES = {"accelerator", "device", "devices"}


def public_functions():
    """All public functions, and the methods that tosica's model class has of its own."""
    functions = {
        f"{package}.{name}": getattr(getattr(tosica, package), name)
        for package in PACKAGES
        for name in getattr(tosica, package).__all__
    }
    functions |= {"report": tosica.report, "TOSICA": TOSICA.__init__}
    for name in dir(TOSICA):
        method = getattr(TOSICA, name)
        if (
            name[0] != "_"
            and callable(method)
            and method.__module__.startswith("tosica.")
        ):
            functions[f"TOSICA.{name}"] = method
    return {
        name: function
        for name, function in functions.items()
        if not inspect.isclass(function)
    }


def declared(function):
    return c.CONSTRAINTS.get(f"{function.__module__}.{function.__qualname__}", {})


def parameters(function):
    """Parameters without ``self``, ``*args`` and ``**kwargs``."""
    for parameter in inspect.signature(function).parameters.values():
        if (
            parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            and parameter.name != "self"
        ):
            yield parameter


# Each constraint refuses some of these: by its type, or in spite of it.
VALUES = (
    *("8", "", "a/b", ".", "a\0b", "nonsense", -1, 0, 2, 5, 1.5, nan, inf, True),
    *(["a"], [1.5], {"X": 1}, np.ones((2, 2)), (0, 4), object()),
)
# No function gets to work with one of these, of which each constraint takes some.
RIGHT = (
    *(0.5, 1, 2, True, "a", "auto", "viridis", [], {}, (6, 4)),
    *map(object.__new__, (AnnData, MuData, TOSICA, AnnbatchReader)),
)


def right(constraint):
    """A value that a constraint takes."""
    if constraint is None or constraint.optional:
        return None
    return next(
        value
        for value in (*RIGHT, *constraint.description.split("'"))
        if constraint.has_type(value) and constraint.is_valid(value)
    )


def wrong(constraint):
    """Values that a constraint refuses, and the errors that it raises for them."""
    values = VALUES if constraint.optional else (*VALUES, None)
    for value in values:
        if not constraint.has_type(value):
            yield value, TypeError
        elif not constraint.is_valid(value):
            yield value, ValueError


FUNCTIONS = public_functions()


@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if declared(FUNCTIONS[name])]
)
def test_wrong_values_of_declared_parameters(name):
    function, constraints = FUNCTIONS[name], declared(FUNCTIONS[name])
    required = [
        parameter.name
        for parameter in parameters(function)
        if parameter.default is parameter.empty
    ]
    arguments = {name: right(constraints.get(name)) for name in required}
    if "self" in inspect.signature(function).parameters:
        arguments["self"] = TOSICA.__new__(TOSICA)
    for parameter, constraint in constraints.items():
        for value, error in wrong(constraint):
            with pytest.raises(error, match=rf"\b{re.escape(parameter)}\b") as refused:
                function(**arguments | {parameter: value})
            assert refused.type is error, (parameter, value)
            assert str(refused.value.args[0]).endswith((".", "?")), (parameter, value)


def test_every_parameter_is_declared():
    # Methods hand these on to infer.
    of_infer = {parameter.name for parameter in parameters(FUNCTIONS["TOSICA.infer"])}
    missing = {
        f"{name}({parameter.name})"
        for name, function in FUNCTIONS.items()
        for parameter in parameters(function)
        if parameter.name not in {*declared(function), *OF_DEVICES}
        and not (
            name.startswith("TOSICA.")
            and name != "TOSICA.infer"
            and parameter.name in of_infer
        )
    }
    assert missing <= set(UNDECLARED)
