"""Read damaged files, and kill a process while it saves: nothing hangs, crashes or is half.

``python -m benchmarks.damage [--mutants N] [--kills N]`` from the repository's root runs a few
minutes and ends with 1 if a reader crashed, hung, took too much memory or raised an error that is
not one sentence for the user, or if a killed process left half a model. The weekly workflow
``.github/workflows/weekly.yml`` runs it with another seed each time.
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import shutil
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anndata
import h5py
import numpy as np
import scanpy as sc
from scipy.sparse import csr_matrix

import tosica
from benchmarks._results import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What a reader may take for a file of less than a megabyte, and the errors that users are told.
SECONDS, MEGABYTES = 30, 2048
TOLD = (OSError, ValueError, KeyError, TypeError, ImportError)
# Words by which the text of an error shows that nobody wrote it for a user.
RAW = (
    "object has no attribute",
    "not subscriptable",
    "out of bounds",
    "unpack",
    "Traceback",
)
GOOD = ("read", "refused")


# --------------------------------------------------------------------------- whole files


def make_cells(n_obs: int = 200) -> anndata.AnnData:
    """Make counts of three types, with a mask."""
    rng = np.random.default_rng(0)
    kind = np.arange(n_obs) % 3
    rate = np.full((n_obs, 60), 0.5)
    for i in range(3):
        rate[np.ix_(kind == i, np.arange(i, 60, 3))] = 3
    adata = anndata.AnnData(csr_matrix(rng.poisson(rate).astype(np.float32)))
    adata.var_names = [f"G{i}" for i in range(60)]
    adata.obs["kind"] = np.array(list("abc"))[kind]
    tosica.pp.build_mask(
        adata, {f"set {i}": [f"G{g}" for g in range(i, 60, 6)] for i in range(6)}
    )
    return adata


def make_model(seed: int) -> tosica.TOSICA:
    """Train a small model."""
    adata = make_cells()
    tosica.TOSICA.setup_anndata(adata, labels_key="kind")
    tosica.settings.seed = seed
    model = tosica.TOSICA(adata, embed_dim=8)
    model.train(max_epochs=2, accelerator="cpu", enable_progress_bar=False)
    return model


def make_files(folder: Path, data: Path | None) -> dict[str, Callable[[Path], Any]]:
    """Write a file of each kind, and return what reads it, by its path relative to the folder."""
    make_cells().write_h5ad(folder / "cells.h5ad")
    sets = tosica.gs.load("human_gobp")
    some = {name: sets[name] for name in sorted(sets)[:50]}
    tosica.gs.write_gmt(some, folder / "sets.gmt")
    tosica.gs.write_gmt(some, folder / "sets.gmt.gz")
    make_model(0).save(folder / "model")
    readers: dict[str, Callable[[Path], Any]] = {
        "cells.h5ad": tosica.io.read_seurat,
        "sets.gmt": tosica.gs.read_gmt,
        "sets.gmt.gz": tosica.gs.read_gmt,
        "model/model.pt": lambda path: tosica.TOSICA.load(path.parent).predict(
            make_cells(20)
        ),
    }
    if data is not None:
        shutil.copytree(data / "legacy_project" / "project", folder / "legacy")
        for name in ("kang_seurat.rds", "kang_sce.rds", "kang.h5Seurat"):
            shutil.copy(data / "seurat" / name, folder / name)
            readers[name] = tosica.io.read_seurat
        for name in ("model.pth", "mask.npy", "pathway.csv", "label_dictionary.csv"):
            readers[f"legacy/{name}"] = lambda path: tosica.TOSICA.load_legacy(
                path.parent
            )
    return readers


# --------------------------------------------------------------------------- damage


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Injure the bytes of a file in one to three places, of a zipped one also its content."""
    if content[:2] == b"\x1f\x8b" and rng.random() < 0.5:
        return gzip.compress(
            damage(gzip.decompress(content), rng), compresslevel=1, mtime=0
        )
    for _ in range(rng.integers(1, 4)):
        at, n = int(rng.integers(len(content) + 1)), int(rng.choice([1, 4, 100, 4096]))
        before, part, after = content[:at], content[at : at + n], content[at + n :]
        huge = int(rng.choice([-1, 2**31 - 1, 10**6])).to_bytes(4, "big", signed=True)
        content = [
            before,
            before + after,
            before + part + part + after,
            before + rng.bytes(len(part)) + after,
            before + rng.bytes(n) + part + after,
            before + bytes(len(part)) + after,
            before + huge + content[at + 4 :],
        ][rng.integers(7)]
    return content


def damage_member(path: Path, rng: np.random.Generator) -> None:
    """Delete, rename or overwrite a member of an HDF5 file, which stays whole."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = names[rng.integers(len(names))]
        member = file[name]
        match rng.integers(3):
            case 0:
                del file[name]
            case 1:
                file.move(name, f"{name}_")
            case _ if isinstance(member, h5py.Dataset) and member.dtype.kind in "iuf":
                member[...] = (
                    rng.permutation(np.ravel(member[()])).reshape(member.shape) * -3
                )
            case _:
                member.attrs.clear()


# --------------------------------------------------------------------------- outcomes


def outcome_in_child(read: Callable[[Path], Any], path: Path) -> str:
    """Read a file in a process with limits, and name what happened."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MEGABYTES * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            os.write(sending, outcome(read, path).encode())
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        text = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    if text:
        return text
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return "hang" if ended_by in (signal.SIGXCPU, signal.SIGKILL) else "crash"


def outcome(read: Callable[[Path], Any], path: Path) -> str:
    """Name what a reader does: read, refused in a sentence, or anything worse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except MemoryError:
        return "memory"
    except TOLD as error:
        text = str(error)
        raw = [word for word in RAW if word in text]
        return (
            f"raw: {type(error).__name__}: {text[:200]}"
            if raw or not text
            else "refused"
        )
    except Exception as error:
        return f"raw: {type(error).__name__}: {str(error)[:200]}"
    return "read"


def mutants(
    readers: dict[str, Callable[[Path], Any]], whole: Path, n: int, seed: int
) -> Iterator[tuple[str, str]]:
    """Damage each file ``n`` times; yield its name and what its reader did."""
    rng = np.random.default_rng(seed)
    for name, read in readers.items():
        for _ in range(n):
            with TemporaryDirectory() as temporary:
                # Beside it lie the other files of its folder, as they were.
                folder = Path(temporary) / "copy"
                shutil.copytree((whole / name).parent, folder)
                path = folder / Path(name).name
                if h5py.is_hdf5(path) and rng.random() < 0.5:
                    damage_member(path, rng)
                else:
                    path.write_bytes(damage(path.read_bytes(), rng))
                yield name, outcome_in_child(read, path)


# --------------------------------------------------------------------------- kills


def kills(n: int, seed: int) -> Iterator[str]:
    """Kill processes that save a model over another one, and say which model is left."""
    rng = np.random.default_rng(seed)
    old, new = make_model(0), make_model(1)
    of = {old.fingerprint: "old", new.fingerprint: "new"}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        old.save(folder, save_anndata=True)
        began = time.perf_counter()
        new.save(folder, save_anndata=True, overwrite=True)
        took = time.perf_counter() - began
        for _ in range(n):
            old.save(folder, save_anndata=True, overwrite=True)
            child = os.fork()
            if child == 0:
                try:
                    new.save(folder, save_anndata=True, overwrite=True)
                finally:
                    os._exit(0)
            time.sleep(rng.uniform(0, 1.2 * took))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            anndata.read_h5ad(folder / "adata.h5ad")
            yield of.get(tosica.TOSICA.load(folder).fingerprint, "half")


def main(arguments: list[str] | None = None) -> None:
    """Damage, read, kill, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--data", type=Path, help="folder with Seurat objects and a legacy project"
    )
    parser.add_argument("--mutants", type=int, default=50, help="of each file")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    tosica.settings.verbosity = "error"
    sc.settings.verbosity = 0
    found: Counter[tuple[str, str]] = Counter()
    with TemporaryDirectory() as temporary:
        readers = make_files(Path(temporary), given.data)
        for name, what in mutants(readers, Path(temporary), given.mutants, given.seed):
            found[name, what] += 1
    for left in kills(given.kills, given.seed):
        found["killed save", left] += 1
    print(
        "\n".join(
            table(["file", "outcome", "n"], [[*k, n] for k, n in sorted(found.items())])
        )
    )
    bad = {key: n for key, n in found.items() if key[1] not in (*GOOD, "old", "new")}
    sys.exit(f"{sum(bad.values())} outcomes are bad" if bad else 0)


if __name__ == "__main__":
    main()
