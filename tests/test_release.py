"""What a release needs: one version, a citation, a conda recipe, an entry in scverse's list."""

import datetime
import hashlib
import json
import re
import shutil

import jsonschema
import pytest
import yaml
from test_distribution import PYPROJECT, ROOT, script

PROJECT = PYPROJECT["project"]
RECIPE = ROOT / "release" / "conda" / "recipe.yaml"
ENTRY = ROOT / "release" / "scverse" / "meta.yaml"


def load(path):
    # Dates as they are written: JSON has none.
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.yaml_implicit_resolvers = {
        key: [(tag, regexp) for tag, regexp in pairs if not tag.endswith(":timestamp")]
        for key, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)


# --------------------------------------------------------------------------- version


def test_the_version_is_the_same_everywhere():
    version = PROJECT["version"]
    assert load(ROOT / "CITATION.cff")["version"] == version
    assert load(RECIPE)["context"]["version"] == version
    assert load(ENTRY)["version"] == version
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{version}]" in changelog


def test_a_version_is_set_everywhere(tmp_path):
    places = script("set_version").PLACES
    set_version = script("set_version").main
    texts = {name: (ROOT / name).read_text("utf-8") for name in places}
    for name in places:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for version in ("next", "0.0.1"):
        with pytest.raises(
            SystemExit,
            match=r"next is not a version|0\.0\.1 is older than the present version",
        ):
            set_version([version, "--root", str(tmp_path)])
    assert {name: (tmp_path / name).read_text("utf-8") for name in places} == texts
    for version in ("7.8.9", "7.8.10"):
        set_version([version, "--root", str(tmp_path)])
    citation = load(tmp_path / "CITATION.cff")
    assert citation["version"] == "7.8.10"
    assert datetime.date.fromisoformat(citation["date-released"])
    for name, text in texts.items():
        changed_text = (
            (tmp_path / name).read_text("utf-8").replace("7.8.10", PROJECT["version"])
        )
        assert re.sub(r"date-released: .*\n", "", changed_text) == text


# --------------------------------------------------------------------------- citation


def test_the_citation_is_valid():
    schema = json.loads(
        (ROOT / "tests" / "cff" / "schema-1.2.0.json").read_text(encoding="utf-8")
    )
    citation = load(ROOT / "CITATION.cff")
    jsonschema.validate(citation, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**citation, "version": None}, schema)
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
    assert citation["url"] == PROJECT["urls"]["Documentation"]


# --------------------------------------------------------------------------- conda


def test_the_recipe_is_what_pyproject_says():
    # Run scripts/write_recipe.py where this differs.
    assert RECIPE.read_text(encoding="utf-8") == script("write_recipe").write_recipe(
        PYPROJECT
    )


def test_the_recipe_of_an_sdist_has_its_hash(tmp_path):
    sdist = tmp_path / "tosica-0.1.0.tar.gz"
    sdist.write_bytes(b"content")
    script("write_recipe").main(
        ["--sdist", str(sdist), "--out", str(tmp_path / "recipe.yaml")]
    )
    recipe = load(tmp_path / "recipe.yaml")
    stored_recipe = load(RECIPE)
    assert recipe["source"]["sha256"] == hashlib.sha256(b"content").hexdigest()
    assert recipe["source"]["url"].endswith("/tosica-${{ version }}.tar.gz")
    assert recipe["requirements"] == stored_recipe["requirements"]
    assert [
        name
        for name in stored_recipe["about"]["license_file"]
        if not (ROOT / name).is_file()
    ] == []
    assert (RECIPE.parent / stored_recipe["source"]["path"]).resolve() == ROOT


# --------------------------------------------------------------------------- scverse


def test_the_entry_in_the_list_of_scverse():
    entry = load(ENTRY)
    # What the schema of scverse/ecosystem-packages requires.
    texts = {
        "name",
        "description",
        "project_home",
        "documentation_home",
        "license",
        "version",
    }
    assert all(isinstance(entry[key], str) for key in texts)
    assert entry["install"]["pypi"] == PROJECT["name"] == entry["name"]
    assert re.fullmatch(r"(.*)::(.*)", entry["install"]["conda"])
    assert entry["category"] == "ecosystem"
    assert all(
        entry[key] and len(entry[key]) == len(set(entry[key]))
        for key in ("tags", "contact", "publications")
    )
    assert all(
        re.fullmatch(r"10.\d{4,9}/[-._;()/:A-Za-z0-9]+", doi)
        for doi in entry["publications"]
    )
    assert entry["project_home"] == PROJECT["urls"]["Source"]
    assert entry["documentation_home"] == PROJECT["urls"]["Documentation"]
    assert entry["license"] in PROJECT["license"].split(" AND ")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert entry["test_command"].removeprefix("pip install ") in readme.replace(
        ".venv/bin/", ""
    )
