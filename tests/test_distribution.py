"""What a distribution says of itself: bounds, reasons and licences of what it needs and holds."""

import ast
import hashlib
import importlib.util
import json
import re
import sys
import tomllib
from contextlib import nullcontext
from importlib.metadata import packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tosica"
FOLDERS = [PACKAGE / "gs" / "resources", PACKAGE / "onto" / "resources"]
TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads(TEXT)


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# --------------------------------------------------------------------------- dependencies


def test_each_dependency_has_one_lower_bound():
    lower_bounds = script("check_lowest").lower_bounds
    assert {"numpy", "igraph", "rdata", "hypothesis"} <= set(lower_bounds(PYPROJECT))
    for dependencies, sentence in (
        (
            ["numpy>=1.26", "pandas"],
            "'pandas' in pyproject.toml has no lower bound; add one.",
        ),
        (
            ["a>=1", "a>=2"],
            "a has the lower bounds 1 and 2 in pyproject.toml; name one.",
        ),
    ):
        project = {"dependencies": dependencies, "optional-dependencies": {}}
        with pytest.raises(ValueError, match=re.escape(sentence)):
            lower_bounds({"project": project, "dependency-groups": {"test": []}})


def test_every_import_is_of_a_dependency():
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                imported.add(node.module.split(".")[0])
    imported -= {*sys.stdlib_module_names, "tosica"}
    declared = {
        canonicalize_name(dependency.name)
        for dependency in script("list_licenses").read_dependencies(TEXT)
    }
    distributions = packages_distributions()
    undeclared = {
        name
        for name in imported
        if declared.isdisjoint(map(canonicalize_name, distributions.get(name, [name])))
    }
    assert undeclared == set()


def test_page_of_licences_lists_every_dependency_and_why():
    page = (ROOT / "release" / "licenses.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([\w-]+) \| [\d.]+ \| ([^|]+) \| (.+) \|$", page, flags=re.MULTILINE
    )
    dependencies = script("list_licenses").read_dependencies(TEXT)
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"].values()
    n_needed = len(project["dependencies"]) + sum(map(len, extras))
    assert len(dependencies) == n_needed > 15
    # Run scripts/list_licenses.py where this differs.
    assert [(name, reason) for name, _, reason in rows] == [
        (dependency.name, dependency.reason) for dependency in dependencies
    ]
    for name, licence, _ in rows:
        assert ("GNU" in licence) == (name == "igraph")


def test_a_dependency_without_a_reason():
    text = TEXT.replace('  "numba>=', '  "unexplained>=1",\n  "numba>=')
    with pytest.raises(
        ValueError, match=r"unexplained in pyproject.toml needs a comment"
    ):
        script("list_licenses").read_dependencies(text)


# --------------------------------------------------------------------------- data in the package


def files_in_resources(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in paths}
    return {
        name: path
        for name, path in named.items()
        if name not in {"README.md", "SHA256SUMS"}
    }


@pytest.mark.parametrize("folder", FOLDERS, ids=["gs", "onto"])
def test_every_file_has_its_checksum(folder):
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in map(str.split, lines)}
    checksums = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files_in_resources(folder).items()
    }
    assert checksums == listed


@pytest.mark.parametrize("folder", FOLDERS, ids=["gs", "onto"])
def test_every_file_has_a_licence_and_a_maker(folder):
    readme = (folder / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", readme, flags=re.MULTILINE
    )
    licences = {name: licence for name, licence, _ in rows if len(name) < 64}
    assert set(licences) == set(files_in_resources(folder))
    for name, path in files_in_resources(folder).items():
        if name.endswith(".json"):
            assert json.loads(path.read_bytes())["licence"] == licences[name]
    for maker in re.findall(r"`(scripts/\w+\.py)`", readme):
        assert (ROOT / maker).is_file()


def test_no_compressed_file_holds_a_time_or_a_name():
    compressed = [path for folder in FOLDERS for path in folder.rglob("*.gz")]
    assert len(compressed) > 3
    assert {path.read_bytes()[:8] for path in compressed} == {b"\x1f\x8b\x08\0\0\0\0\0"}


# --------------------------------------------------------------------------- the wheel


def check_wheel(tmp_path, changed):
    """Look at a wheel as it should be, but for some files; ``scripts/check.sh build`` looks at a real one."""
    project = PYPROJECT["project"]
    info = "tosica-0.1.0.dist-info/"
    metadata = [f"License-Expression: {project['license']}"]
    metadata += [f"License-File: {name}" for name in project["license-files"]]
    data = [path for folder in FOLDERS for path in folder.rglob("*") if path.is_file()]
    files = {
        info + "METADATA": "\n".join(metadata).encode(),
        **{info + "licenses/" + name: b"text" for name in project["license-files"]},
        **{
            path.relative_to(ROOT / "src").as_posix(): path.read_bytes()
            for path in data
        },
        **changed,
    }
    with ZipFile(tmp_path / "x.whl", "w") as archive:
        for name, content in files.items():
            if content is not None:
                archive.writestr(name, content)
    script("check_wheel").main([str(tmp_path / "x.whl")])


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("tosica/anything.py", b"", None),
        (
            "tosica/gs/resources/genes/mouse.tsv.gz",
            b"x",
            "genes/mouse.tsv.gz is not the file",
        ),
        (
            "tosica/onto/resources/cell_ontology.tsv.gz",
            None,
            "cell_ontology.tsv.gz is missing",
        ),
        ("tosica/gs/resources/new.gmt.gz", b"x", "new.gmt.gz has no checksum"),
        (
            "tosica-0.1.0.dist-info/licenses/LICENSE",
            None,
            "LICENSE is not among its licence",
        ),
        (
            "tosica-0.1.0.dist-info/METADATA",
            b"License-Expression: MIT",
            "its licence is MIT.",
        ),
    ],
)
def test_wheels(tmp_path, name, content, sentence):
    with (
        pytest.raises(SystemExit, match=re.escape(sentence))
        if sentence
        else nullcontext()
    ):
        check_wheel(tmp_path, {name: content})
