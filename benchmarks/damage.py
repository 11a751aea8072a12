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

# Limits of a reader on a file of less than a megabyte, and errors that are for users.
SECONDS = 30
MEGABYTES = 2048
USER_ERRORS = (OSError, ValueError, KeyError, TypeError, ImportError)
# Words by which the text of an error shows that nobody wrote it for a user.
RAW_WORDS = (
    "object has no attribute",
    "not subscriptable",
    "out of bounds",
    "unpack",
    "Traceback",
)
GOOD_OUTCOMES = ("read", "refused", "old", "new")


# --------------------------------------------------------------------------- files


def make_cells(n_obs: int = 200) -> anndata.AnnData:
    """Make counts of three types, with a mask."""
    rng = np.random.default_rng(0)
    codes = np.arange(n_obs) % 3
    rates = np.full((n_obs, 60), 0.5)
    for i in range(3):
        rates[np.ix_(codes == i, np.arange(i, 60, 3))] = 3
    adata = anndata.AnnData(csr_matrix(rng.poisson(rates).astype(np.float32)))
    adata.var_names = [f"G{i}" for i in range(60)]
    adata.obs["kind"] = np.array(list("abc"))[codes]
    gene_sets = {f"set {i}": [f"G{g}" for g in range(i, 60, 6)] for i in range(6)}
    tosica.pp.build_mask(adata, gene_sets)
    return adata


def make_model(seed: int) -> tosica.TOSICA:
    """Train a small model."""
    adata = make_cells()
    tosica.TOSICA.setup_anndata(adata, labels_key="kind")
    tosica.settings.seed = seed
    model = tosica.TOSICA(adata, embed_dim=16)
    model.train(max_epochs=2, accelerator="cpu", enable_progress_bar=False)
    return model


def make_files(folder: Path, data: Path | None) -> dict[str, Callable[[Path], Any]]:
    """Write a file of each kind, and return its reader by its path in the folder."""
    make_cells().write_h5ad(folder / "cells.h5ad")
    sets = tosica.gs.load("human_gobp")
    sets = {name: sets[name] for name in sorted(sets)[:50]}
    tosica.gs.write_gmt(sets, folder / "sets.gmt")
    tosica.gs.write_gmt(sets, folder / "sets.gmt.gz")
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
        begin = int(rng.integers(len(content) + 1))
        end = begin + int(rng.choice([1, 4, 100, 4096]))
        head = content[:begin]
        middle = content[begin:end]
        tail = content[end:]
        number = int(rng.choice([-1, 2**31 - 1, 10**6])).to_bytes(4, "big", signed=True)
        content = [
            head,
            head + tail,
            head + middle + middle + tail,
            head + rng.bytes(len(middle)) + tail,
            head + rng.bytes(end - begin) + middle + tail,
            head + bytes(len(middle)) + tail,
            head + number + content[begin + 4 :],
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
                values = rng.permutation(np.ravel(member[()]))
                member[...] = values.reshape(member.shape) * -3
            case _:
                member.attrs.clear()


# --------------------------------------------------------------------------- outcomes


def outcome_in_child(reader: Callable[[Path], Any], path: Path) -> str:
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
            os.write(sending, outcome(reader, path).encode())
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


def outcome(reader: Callable[[Path], Any], path: Path) -> str:
    """Name what a reader does: read, refused in a sentence, or anything worse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader(path)
    except MemoryError:
        return "memory"
    except USER_ERRORS as error:
        text = str(error)
        if text and not any(word in text for word in RAW_WORDS):
            return "refused"
        return f"raw: {type(error).__name__}: {text[:200]}"
    except Exception as error:
        return f"raw: {type(error).__name__}: {str(error)[:200]}"
    return "read"


def mutants(
    readers: dict[str, Callable[[Path], Any]], intact: Path, n: int, seed: int
) -> Iterator[tuple[str, str]]:
    """Damage each file ``n`` times; yield its name and the outcome of its reader."""
    rng = np.random.default_rng(seed)
    for name, reader in readers.items():
        for _ in range(n):
            with TemporaryDirectory() as temporary:
                # The folder's other files are copied undamaged.
                folder = Path(temporary) / "copy"
                shutil.copytree((intact / name).parent, folder)
                path = folder / Path(name).name
                if h5py.is_hdf5(path) and rng.random() < 0.5:
                    damage_member(path, rng)
                else:
                    path.write_bytes(damage(path.read_bytes(), rng))
                yield name, outcome_in_child(reader, path)


# --------------------------------------------------------------------------- kills


def kills(n: int, seed: int) -> Iterator[str]:
    """Kill processes that save a model over another model, and tell which one is there."""
    rng = np.random.default_rng(seed)
    old = make_model(0)
    new = make_model(1)
    names = {old.fingerprint: "old", new.fingerprint: "new"}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        old.save(folder, save_anndata=True)
        start_time = time.perf_counter()
        new.save(folder, save_anndata=True, overwrite=True)
        seconds = time.perf_counter() - start_time
        for _ in range(n):
            old.save(folder, save_anndata=True, overwrite=True)
            child = os.fork()
            if child == 0:
                try:
                    new.save(folder, save_anndata=True, overwrite=True)
                finally:
                    os._exit(0)
            time.sleep(rng.uniform(0, 1.2 * seconds))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            anndata.read_h5ad(folder / "adata.h5ad")
            yield names.get(tosica.TOSICA.load(folder).fingerprint, "half")


def main(arguments: list[str] | None = None) -> None:
    """Damage, read, kill, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--data", type=Path, help="folder with Seurat objects and a legacy project"
    )
    parser.add_argument("--mutants", type=int, default=50, help="of each file")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    tosica.settings.verbosity = "error"
    sc.settings.verbosity = 0
    outcomes: Counter[tuple[str, str]] = Counter()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        readers = make_files(folder, options.data)
        outcomes.update(mutants(readers, folder, options.mutants, options.seed))
    for name in kills(options.kills, options.seed):
        outcomes["killed save", name] += 1
    rows = [[*outcome, n] for outcome, n in sorted(outcomes.items())]
    print("\n".join(table(["file", "outcome", "n"], rows)))
    n_bad = sum(
        n for (_, outcome), n in outcomes.items() if outcome not in GOOD_OUTCOMES
    )
    sys.exit(f"{n_bad} outcomes are bad" if n_bad else 0)


if __name__ == "__main__":
    main()
