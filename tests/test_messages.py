"""All messages of errors and warnings are in one file, to be reviewed as prose.

After a change of messages, ``python tests/test_messages.py`` writes the file anew; read its diff.
"""

import ast
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


if __name__ == "__main__":
    FILE.write_text(all_messages())
