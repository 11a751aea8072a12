"""All messages of errors and warnings are in one file, to be reviewed as prose.

After a change of messages, ``python tests/test_messages.py`` writes the file anew; read its diff.
"""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "tosica"
FILE = Path(__file__).with_name("messages.txt")


def _unparsed(node):
    """Write an expression; Pythons differ in the quotes that they choose."""
    return ast.unparse(node).replace('"', "'")


def text_of(node):
    """The template of a message: values are shown as the expressions in braces."""
    match node:
        case ast.Constant(value=str()):
            return node.value
        case ast.JoinedStr():
            return "".join(map(text_of, node.values))
        case ast.FormattedValue():
            return f"{{{_unparsed(node.value)}}}"
        case ast.BinOp(op=ast.Add()):
            return text_of(node.left) + text_of(node.right)
        case _:
            return f"{{{_unparsed(node)}}}"


def messages_in(node, where):
    """Messages that are raised or warned of, with the name of the function."""
    for child in ast.iter_child_nodes(node):
        inside = where
        if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            inside = f"{where}.{child.name}"
        yield from messages_in(child, inside)
        called = child.exc if isinstance(child, ast.Raise) else child
        if not isinstance(called, ast.Call) or not called.args:
            continue
        name = ast.unparse(called.func)
        if isinstance(child, ast.Raise) or name in ("warn_user", "warnings.warn"):
            yield f"{where}: {name}: {text_of(called.args[0])}"


def all_messages():
    lines = []
    for path in SOURCE.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        lines += messages_in(ast.parse(path.read_text()), module)
    # A line break in a message would look like two messages.
    return "\n".join(sorted(line.replace("\n", "\\n") for line in lines)) + "\n"


def test_messages_are_those_of_the_file():
    current = set(all_messages().splitlines())
    reviewed = set(FILE.read_text().splitlines())
    assert current - reviewed == set(), "new or changed: python tests/test_messages.py"
    assert reviewed - current == set(), "gone: python tests/test_messages.py"


def test_messages_are_sentences():
    fragments = []
    for line in FILE.read_text().splitlines():
        _, error, text = line.split(": ", 2)
        # Private errors hold parts of sentences, which other errors finish.
        if not error.startswith("_") and not text.endswith((".", "?", "}", ")")):
            fragments.append(text)
    assert fragments == []


# --------------------------------------------------------------------------- the command line

# A call, a function or an argument of Python, or a parameter that is an option on the command line.
PYTHON = re.compile(
    r"\b(?:tosica|TOSICA|model|[am]data|scanpy|sc|pandas|pd|muon|mudata|h5py|anndata)\.[\w.]*\("
    r"|\btosica\.(?:tl|pp|gs|io|onto|get|pl|datasets)\.\w|\bTOSICA\.\w|\bmodel\.\w"
    r"|\b[a-z_]+=(?:True|False|None|[{'\"\[.])|\.astype\(|\.to_memory|\.tocsr"
    r"|\b(?:(?:labels|batch|sample|prediction)_key|key_added|unlabeled_category|over_clustering|min_prop|max_gene_sets)\b"
)
# These write one text in Python and another one on the command line.
WORDINGS = {"in_python", "parameter", "argument", "call"}
# What no command reaches.
NOT_REACHED = (
    *("pl", "get", "onto._ontology", "io._cell_annotation", "tl._rank_gene_sets"),
    *(
        "tl._refine",
        "pp._join_references",
        "pp._join_labels",
        "model._legacy",
        "model._hub",
        "_validate",
    ),
    *("model._annbatch", "model._network_weights", "_obs.read_groups", "_demo"),
    *("_settings", "_probabilities", "_obs._call_for"),
    *("_obs.read_attribution", "data._matrix.ExpressionSource", "data._mudata"),
    *("io._seurat.from_seurat", "io._seurat.to_seurat", "model._modalities"),
    *("model._change_labels.ChangeLabelsMixin.fit_new_labels", "model._save_load"),
    "model._change_labels.ChangeLabelsMixin.recalibrate",
    *("model._annotation.AnnotationMixin", "model._calibration", "model._setup"),
    *("model._fields.ExpressionField", "model._fields.MaskField", "model._tosica"),
    *("model._phases.hold_out", "model._trainer", "model._training"),
    *("ondisk._store.Store.__init__", "pp._build_mask", "tl._evaluate._score_terms"),
    *("tl._attribute", "tl._majority_vote.read_clusters"),
    *("_obs.check_target", "tl._faithfulness"),
)
# No option does what these say.
ONLY_IN_PYTHON = {
    "cli._files.read_cells": "makes cells of a table",
    "io._file_kinds._refuse_slashes": "mends a file",
    "_report._map": "is HTML",
    "model._card": "is a page about a model",
    "tl._doubts._cells_unlike_the_reference": "recalibrates a model",
    "tl._doubts._overconfidence": "recalibrates a model",
    "tl._doubts._inexact_contributions": "explains with other points",
}


def sentences_in(node, where):
    """Texts of more than one word without docstrings, and without what :data:`WORDINGS` write."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Call(func=ast.Name(id=name)) if name in WORDINGS:
                continue
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Constant(value=str(text)) if " " in text.strip():
                yield where, text
            case ast.JoinedStr(values=values):
                pieces = [getattr(value, "value", None) for value in values]
                # Values are shown as braces.
                yield where, "".join(p if isinstance(p, str) else "{}" for p in pieces)
                yield from sentences_in(child, where)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield from sentences_in(child, f"{where}.{name}")
            case _:
                yield from sentences_in(child, where)


def test_no_sentence_of_the_command_line_names_python():
    wrong = []
    for path in SOURCE.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for where, text in sentences_in(ast.parse(path.read_text()), module):
            place = f"{where}."
            is_reached = not place.startswith(tuple(f"{name}." for name in NOT_REACHED))
            if is_reached and where not in ONLY_IN_PYTHON and PYTHON.search(text):
                wrong.append((where, text))
    assert wrong == [], "in_python, parameter, argument and call of _text.py have words"


if __name__ == "__main__":
    FILE.write_text(all_messages())
