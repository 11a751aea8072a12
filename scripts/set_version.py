"""Give the package another version: in `pyproject.toml`, and wherever that is repeated for others.

python scripts/set_version.py 0.2.0
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
# `pyproject.toml` is the one that counts. The others cannot read it: they are read elsewhere.
PLACES = {
    "pyproject.toml": r'^version = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "release/conda/recipe.yaml": r'^  version: "(.+)"$',
    "release/scverse/meta.yaml": r"^version: (.+)$",
}
DATE = r"^date-released: .+\n"


def replace(pattern: str, value: str, text: str) -> str:
    """Put a value into the place of a pattern's group."""
    match = re.search(pattern, text, flags=re.MULTILINE)
    assert match is not None
    return text[: match.start(1)] + value + text[match.end(1) :]


def set_version(version: str, root: Path, date: str) -> None:
    """Write a version to every place, and the date to `CITATION.cff`."""
    for name, pattern in PLACES.items():
        text = replace(pattern, version, (root / name).read_text(encoding="utf-8"))
        if name == "CITATION.cff":
            text = re.sub(DATE, "", text, flags=re.MULTILINE)
            text = replace(pattern, f"{version}\ndate-released: {date}", text)
        (root / name).write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Set the version, if it is one that comes after the present one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", help="the new version, such as 0.2.0")
    parser.add_argument("--root", type=Path, default=ROOT, help="another clone")
    options = parser.parse_args(argv)
    text = (options.root / "pyproject.toml").read_text(encoding="utf-8")
    old_version = tomllib.loads(text)["project"]["version"]
    try:
        version = Version(options.version)
    except InvalidVersion:
        sys.exit(f"{options.version} is not a version; write it as 0.2.0.")
    if version < Version(old_version):
        sys.exit(
            f"{version} is older than the present version {old_version}; name a newer one."
        )
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    set_version(str(version), options.root, today)
    print(
        f"{old_version} → {version} in {', '.join(PLACES)}. Now the changelog: release/README.md."
    )


if __name__ == "__main__":
    main()
