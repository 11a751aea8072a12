"""The tutorials: that outputs are in the files, that no machine is named, and how they are checked.

`scripts/check.sh tutorials` runs them, every night.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "tutorials").glob("*.ipynb"))
pytestmark = pytest.mark.skipif(
    not (ROOT / "tutorials").is_dir(),
    reason="tutorials are not part of an installed package",
)


def _cells(name):
    return json.loads((ROOT / "tutorials" / f"{name}.ipynb").read_text())["cells"]


def _code(name):
    return [cell for cell in _cells(name) if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", NAMES)
def test_committed_as_it_ran(name):
    cells = _code(name)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    # A warning in a tutorial is one that every reader will get.
    assert not re.search(r"Warning:", json.dumps(outputs))


@pytest.mark.parametrize("name", NAMES)
def test_names_no_machine(name):
    cells = [
        cell | {"outputs": [_without_images(o) for o in cell.get("outputs", [])]}
        for cell in _cells(name)
    ]
    match = re.search(
        r"[\"' (=](/(?:root|home|tmp|work|usr|opt|Users|mnt)/\S+)", json.dumps(cells)
    )
    assert match is None, match


def _without_images(output):
    data = {
        k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")
    }
    return output | {"data": data}


@pytest.mark.parametrize("name", NAMES)
def test_reads_nothing_that_only_developers_have(name):
    assert not re.search(
        r"shared|\.\./", "".join("".join(cell["source"]) for cell in _code(name))
    )


def test_are_all_listed():
    page = (ROOT / "tutorials" / "index.md").read_text()
    listed = re.search(r"```\{toctree\}(.*?)```", page, re.DOTALL)[1]
    assert sorted(re.findall(r"^(\w+)$", listed, re.MULTILINE)) == NAMES
