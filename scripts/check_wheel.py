"""Check that a wheel holds the data of the repository, unchanged, and the licences of all of it.

python scripts/check_wheel.py dist/*.whl
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tomllib
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tosica/gs/resources/", "tosica/onto/resources/")
# Not data: what the others are, and their checksums.
ABOUT = {"README.md", "SHA256SUMS"}


def find_faults(wheel: Path, project: dict, checksums: dict[str, str]) -> list[str]:
    """Compare a wheel with `[project]` of pyproject.toml and with the repository's checksums."""
    documentation = {folder + name for folder in FOLDERS for name in ABOUT}
    faults = []
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        packaged = {name for name in names if name.startswith(FOLDERS)}
        faults += [
            f"{name} is missing"
            for name in sorted({*checksums, *documentation} - packaged)
        ]
        faults += [
            f"{name} has no checksum"
            for name in sorted(packaged - {*checksums, *documentation})
        ]
        for name in sorted(packaged & set(checksums)):
            if hashlib.sha256(archive.read(name)).hexdigest() != checksums[name]:
                faults.append(f"{name} is not the file that SHA256SUMS describes")
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        if metadata["License-Expression"] != project["license"]:
            faults.append(f"its licence is {metadata['License-Expression']}")
        for name in project["license-files"]:
            if name not in metadata.get_all("License-File", []):
                faults.append(f"its metadata do not name {name}")
            if f"{info}/licenses/{name}" not in names:
                faults.append(f"{name} is not among its licence files")
    return [f"{wheel.name}: {fault}." for fault in faults]


def main(argv: Sequence[str] | None = None) -> None:
    """Print what is wrong with each wheel, and fail if there is anything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", type=Path, nargs="+")
    wheels = parser.parse_args(argv).wheels
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    checksums = {
        folder + name: digest
        for folder in FOLDERS
        for line in (ROOT / "src" / folder / "SHA256SUMS")
        .read_text(encoding="utf-8")
        .splitlines()
        for digest, name in [line.split()]
    }
    faults = [
        fault for wheel in wheels for fault in find_faults(wheel, project, checksums)
    ]
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(checksums)} files of data are in the wheel, unchanged, with licences.")


if __name__ == "__main__":
    main()
