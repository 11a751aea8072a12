"""What the readers of tosica do with damaged files: 5 000 mutants and some bombs.

``python -m benchmarks.mutated_files FOLDER`` from the repository's root, with ``seurat``,
``gene_sets`` and ``legacy_project`` in that folder, writes ``docs/benchmarks/mutated_files.md`` and
``mutated_files.json``. Each mutant is read in a process with limits of memory and time, and
what was read is used. A mutant has a name, such as ``rds/values/17``, by which ``--only`` makes and
reads it again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from logging import CRITICAL, disable
from pathlib import Path
from typing import Any

from benchmarks._damage_bombs import BOMBS
from benchmarks._damage_runs import (
    MEGABYTES,
    MOST_MEGABYTES,
    SECONDS,
    Case,
    make,
    measure,
    run,
    whole_digests,
)
from benchmarks._damage_sources import Source, published, written
from benchmarks._report import table, version_lines, versions, write

# Mutants of each kind of file and way: of files written here, and of real ones.
GROUPS = {
    "rds/file": (150, 150),
    "rds/unpacked": (700, 450),
    "rds/values": (900, 0),
    "h5Seurat/file": (200, 150),
    "h5Seurat/members": (300, 200),
    "h5ad/file": (200, 300),
    "h5ad/members": (300, 400),
    "gmt/file": (60, 60),
    "gmt.gz/file": (40, 40),
    "gmt.gz/unpacked": (40, 40),
    "cache/file": (0, 40),
    "download/file": (0, 30),
    "pth/file": (0, 50),
    "pth/values": (0, 50),
    "npy/file": (0, 30),
    "npy/values": (0, 30),
    "csv/file": (0, 90),
}
NAMES = {
    "rds": ".rds",
    "h5Seurat": ".h5Seurat",
    "h5ad": ".h5ad",
    "gmt": ".gmt",
    "gmt.gz": ".gmt.gz",
    "cache": "a cached collection",
    "download": "a downloaded collection",
    "pth": "legacy: model.pth",
    "npy": "legacy: mask.npy",
    "csv": "legacy: tables",
    "bomb": "bombs",
}
WAYS = {
    "file": "bytes of the file",
    "unpacked": "bytes before compression",
    "values": "values",
    "members": "members and values",
    "bomb": "see below",
}
OUTCOMES = {
    "unchanged": "read as before",
    "different": "other valid data",
    "sentence": "one sentence",
    "invalid": "invalid data",
    "raw": "raw error",
    "killed": "crash",
    "memory": "memory",
    "hang": "hang",
    "hdf5": "inside HDF5",
}
GOOD = ("unchanged", "different", "sentence")


def all_cases(data: Path | None, share: float = 1) -> list[Case]:
    """The mutants of all groups; of each group the first ones if ``share`` is below one."""
    here, there = written(), published(data) if data is not None else {}
    cases = []
    for group, counts in GROUPS.items():
        kind = group.split("/")[0]
        # Numbers of real files follow those of written ones: a name does not depend on data.
        for first, n, sources in ((0, counts[0], here), (counts[0], counts[1], there)):
            of_kind = sources.get(kind, [])
            n_made = round(n * share) if of_kind else 0
            cases += [Case(group, first + i, of_kind[i % len(of_kind)]) for i in range(n_made)]
    if share == 1:
        cases += [Case("bomb/bomb", i, Source(name, b"")) for i, name in enumerate(BOMBS)]
    return cases


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Count the outcomes of each group, and keep the bombs and what was neither read nor refused.

    The others can be made again by their names.
    """
    counts: dict[str, Counter] = {}
    for each in runs:
        counts.setdefault(each["name"].rpartition("/")[0], Counter())[each["outcome"]] += 1
    return {
        "counts": counts,
        "seconds": max(each["seconds"] for each in runs),
        "megabytes": max(each["megabytes"] for each in runs),
        "bombs": [each for each in runs if each["name"].startswith("bomb/")],
        "left": [each for each in runs if each["outcome"] not in GOOD],
    }


def report(result: dict[str, Any]) -> str:
    """The page."""
    total: Counter = Counter()
    rows = []
    for group in [*GROUPS, "bomb/bomb"]:
        kind, way = group.split("/")
        counted = Counter(result["counts"].get(group, {}))
        total += counted
        if counted:
            rows.append(
                [
                    NAMES[kind],
                    WAYS[way],
                    counted.total(),
                    *(counted[outcome] for outcome in OUTCOMES),
                ]
            )
    rows.append(["**all**", "", total.total(), *(total[outcome] for outcome in OUTCOMES)])
    lines = [
        "# Damaged files",
        "",
        "Written by `python -m benchmarks.mutated_files`. Whole files of each kind are damaged at "
        "random, one to three injuries each:",
        "bits, bytes and blocks flipped, removed, inserted or doubled, the end cut off, lengths "
        "and indices replaced by huge or negative",
        "numbers, members and values deleted, renamed or replaced by other types. Each mutant is "
        "read by `tosica.io.read_seurat`,",
        "`tosica.gs.read_gmt`, `tosica.gs.load` or `tosica.TOSICA.load_legacy` in a process with "
        "limits of memory and time, and what was read is used:",
        "matrices are summed and shown, the model annotates cells.",
        *([result["note"]] if result.get("note") else []),
        "",
        *table(["file", "damaged", "mutants", *OUTCOMES.values()], rows),
        "",
        "- *Read as before*: the injury is in a part that is not read, or changes nothing.",
        "- *Other valid data*: nothing in the file contradicts the change, such as another digit "
        "in a name.",
        "- *One sentence*: a `raise` of tosica, whose message is one sentence.",
        "- *Invalid data*: names twice, values that are not finite, or an index outside a matrix "
        "were returned.",
        "- *Raw error*: an error or a warning from deeper inside.",
        f"- *Memory*: reading took more than {MEGABYTES // 1024} GB beside what Python has, or "
        f"asked for more than {MOST_MEGABYTES // 1024} GB. *Hang*: more than {SECONDS} s of "
        f"processor time ({6 * SECONDS} s for making and reading a bomb).",
        "- *Inside HDF5*: a crash, a hang or a growth of memory that h5py alone, which reads the "
        "same file without tosica, has as well.",
        "",
        f"The slowest file took {result['seconds']:.1f} s of processor time; "
        f"the largest growth of memory was {result['megabytes']:.0f} MB.",
        "",
        "## Bombs",
        "",
        *table(
            ["file", "result", "s", "MB", "message"],
            [
                [b["file"], OUTCOMES[b["outcome"]], b["seconds"], b["megabytes"], b["text"]]
                for b in result["bombs"]
            ],
        ),
        "",
        *(["## Left over", "", *map(_line, result["left"]), ""] if result["left"] else []),
        *version_lines(result),
    ]
    return "\n".join(lines)


def _line(run: dict[str, Any]) -> str:
    about = " ".join(part for part in (run["damage"] and f"{run['damage']}.", run["text"]) if part)
    return f"- `{run['name']}` ({OUTCOMES[run['outcome']]})" + (f": {about}" if about else "")


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files; 'none' for none")
    parser.add_argument("--share", type=float, default=1, help="part of the mutants of each group")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="mutants to show, by name")
    parser.add_argument("--keep", type=Path, help="folder for the files of --only")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    disable(CRITICAL)
    cases = all_cases(None if str(given.data) == "none" else given.data, given.share)
    if given.only:
        chosen = [case for case in cases if case.name in given.only]
        for case in chosen if given.keep else ():
            shutil.rmtree(given.keep / case.name, ignore_errors=True)
            (given.keep / case.name).mkdir(parents=True)
            make(case, given.keep / case.name)
        for result in measure(chosen, whole_digests(chosen)):
            print(json.dumps(result, indent=1))
        return
    start = time.perf_counter()
    result: dict[str, Any] = summarize(run(cases, given.jobs))
    print(f"{len(cases)} files in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    result["versions"] = versions("h5py", "scipy", "pandas", "rdata")
    write(given.out, "mutated_files", result, report(result))


if __name__ == "__main__":
    main()
