"""What is left on the disk when a process is killed while it writes.

``python -m benchmarks.kill`` from the repository's root writes ``docs/benchmarks/kill.md`` and
``kill.json``. Each operation runs in a process of its own, which is ended by SIGKILL at a random
moment: half of the moments are uniform over the operation, half over the part of it that writes.
Then the files are read as a user would, and the operation is run again.
"""

from __future__ import annotations

import argparse
import logging
import os
import pickle
import shutil
import signal
import time
import traceback
import warnings
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata
import numpy as np
import scvi
import torch
from scipy.sparse import csr_matrix

import tosica
from benchmarks._report import table, version_lines, versions, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OLD, NEW, MIXED = "old", "new", "neither"
N_GENES, N_CELLS = 300, 300
# How often a moment is drawn until one comes before the operation's end.
MOST_DRAWS = 100
HALLMARK = "2024.1.Hs/h.all.v2024.1.Hs.symbols.gmt"


class Operation(NamedTuple):
    """Something that writes.

    ``prepare`` makes the old state in an empty folder, ``run`` is what is killed and calls its
    second argument when it begins to write, ``state`` says which state a folder is in, and
    ``again`` is what succeeds afterwards and leaves the new state.
    """

    title: str
    prepare: Callable[[Path], Any]
    run: Callable[[Path, Callable[[], Any]], Any]
    state: Callable[[Path], str]
    again: Callable[[Path], Any]


# --------------------------------------------------------------------------- cells and models


def make_cells(name: str) -> anndata.AnnData:
    """Counts of three types; ``name`` is kept in a column, by which a file is recognised."""
    rng = np.random.default_rng(0)
    kind = np.arange(N_CELLS) % 3
    rate = np.full((N_CELLS, N_GENES), 0.5)
    for i in range(3):
        rate[np.ix_(kind == i, np.arange(i, N_GENES, 3))] = 3
    adata = anndata.AnnData(csr_matrix(rng.poisson(rate).astype(np.float32)))
    adata.var_names = [f"G{i}" for i in range(N_GENES)]
    adata.obs["kind"] = np.array(list("abc"))[kind]
    adata.obs["name"] = name
    sets = {f"set {i}": [f"G{g}" for g in range(i, N_GENES, 12)] for i in range(12)}
    tosica.pp.build_mask(adata, sets)
    return adata


@cache
def make_model(name: str) -> tosica.TOSICA:
    """A small model that was trained on cells of this name."""
    adata = make_cells(name)
    tosica.TOSICA.setup_anndata(adata, labels_key="kind")
    scvi.settings.seed = len(name) + ord(name[0])
    model = tosica.TOSICA(adata, embed_dim=16)
    train(model)
    return model


def train(model: tosica.TOSICA) -> None:
    """Train for a few epochs."""
    model.train(
        max_epochs=3, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False
    )


# --------------------------------------------------------------------------- save and train


def save(
    folder: Path, mark: Callable[[], Any], name: str = NEW, *, save_anndata: bool = True
) -> None:
    """Save a model into the folder, which may hold another one."""
    model = make_model(name)
    mark()
    model.save(folder / "model", overwrite=True, save_anndata=save_anndata)


def saved_state(folder: Path, *, is_new: Callable[[tosica.TOSICA], bool] | None = None) -> str:
    """Of a model that is alone or beside its reference; the reference is read first."""
    reference = folder / "model" / "adata.h5ad"
    # Nothing that could be taken for a model.
    if not reference.exists() and not (folder / "model" / "model.pt").exists():
        return OLD
    names = [str(anndata.read_h5ad(reference).obs["name"].iloc[0])] if reference.exists() else []
    model = tosica.TOSICA.load(folder / "model", accelerator="cpu")
    model.predict(make_cells("query"))
    if is_new is None:
        names += [n for n in (OLD, NEW) if make_model(n).fingerprint == model.fingerprint]
    else:
        names.append(NEW if is_new(model) else OLD)
    return names[0] if len(set(names)) == 1 else MIXED


def train_further(folder: Path, mark: Callable[[], Any]) -> None:
    """Load a model, train it further and save it."""
    model = tosica.TOSICA.load(folder / "model", adata=make_cells(OLD), accelerator="cpu")
    train(model)
    mark()
    model.save(folder / "model", overwrite=True)


def trained_state(folder: Path) -> str:
    """Old is the model itself, new any model with more epochs that still knows its cells."""
    cells = make_cells("query")

    def is_new(model: tosica.TOSICA) -> bool:
        accuracy = float((model.predict(cells) == cells.obs["kind"]).mean())
        if accuracy < 0.9:
            raise ValueError(f"The model has lost what it knew: {accuracy:.2f}.")
        if model.fingerprint == make_model(OLD).fingerprint:
            return False
        return len(model.history["train_loss"]) > len(make_model(OLD).history["train_loss"])

    return saved_state(folder, is_new=is_new)


# --------------------------------------------------------------------------- other files


def annotate(folder: Path, mark: Callable[[], Any]) -> None:
    """Annotate the cells of a file that is read and written in place."""
    model = make_model(NEW)
    query = anndata.read_h5ad(folder / "query.h5ad", backed="r+")
    mark()
    model.annotate(query)


def annotated_state(folder: Path) -> str:
    """Annotation is kept in memory, so that the file is always the old one."""
    query = anndata.read_h5ad(folder / "query.h5ad")
    added = [key for key in (*query.obs, *query.obsm, *query.uns) if "tosica" in key]
    same = (query.X != make_cells(OLD).X).nnz == 0
    return OLD if same and set(added) == {"tosica_mask"} else MIXED


def write_gmt(folder: Path, mark: Callable[[], Any], name: str = NEW) -> None:
    """Write a whole collection."""
    sets = {f"{name} {key}": genes for key, genes in tosica.gs.load("human_gobp").items()}
    mark()
    tosica.gs.write_gmt(sets, folder / "sets.gmt.gz")


def gmt_state(folder: Path) -> str:
    """By the names of the sets, of which there is a known number."""
    sets = tosica.gs.read_gmt(folder / "sets.gmt.gz")
    names = {key.split()[0] for key in sets}
    complete = len(sets) == len(tosica.gs.load("human_gobp"))
    return names.pop() if complete and len(names) == 1 else MIXED


def write_synthetic(folder: Path, mark: Callable[[], Any], name: str = NEW) -> None:
    """Write cells a few at a time."""
    mark()
    tosica.datasets.write_synthetic(
        folder / "cells.h5ad", 500, 800, seed=len(name) + ord(name[0]), chunk_size=50
    )


@cache
def synthetic_sum(name: str) -> float:
    """Sum of all counts."""
    return float(tosica.datasets.synthetic(500, 800, seed=len(name) + ord(name[0])).X.sum())


def synthetic_state(folder: Path) -> str:
    """By the sum of all counts."""
    total = float(anndata.read_h5ad(folder / "cells.h5ad").X.sum())
    return next((name for name in (OLD, NEW) if synthetic_sum(name) == total), MIXED)


@cache
def make_annotated(name: str) -> anndata.AnnData:
    """Annotated cells that are named."""
    query = make_cells(name)
    make_model(OLD).annotate(query, probabilities=True)
    query.obs_names = [f"{name}{i}" for i in range(query.n_obs)]
    return query


def to_seurat(folder: Path, mark: Callable[[], Any], name: str = NEW) -> None:
    """Write four tables and a script."""
    query = make_annotated(name)
    mark()
    tosica.io.to_seurat(query, folder / "seurat")


def seurat_state(folder: Path) -> str:
    """By the cells' names in each table; the script refuses tables that were not all replaced."""
    names = set()
    for path in sorted((folder / "seurat").glob("*.csv")):
        lines = path.read_text().splitlines()
        if path.name != "levels.csv":
            names |= {line.split(",")[0].rstrip("0123456789") for line in lines[1:]}
            assert len(lines) == N_CELLS + 1
    if len(names) == 1:
        return str(names.pop())
    record = list((folder / "seurat").glob(".tosica-*.tmp/replaced_together.json"))
    return OLD if record else MIXED


def draw(folder: Path, mark: Callable[[], Any], name: str = NEW) -> None:
    """Save a figure."""
    query = make_annotated(name).copy()
    query.obs["kind"] = f"{name} " + query.obs["kind"].astype(str)
    mark()
    tosica.pl.confusion(query, "kind", show=False, save=folder / "confusion.png")


@cache
def figure(name: str) -> bytes:
    """The bytes of a whole figure."""
    with TemporaryDirectory() as temporary:
        draw(Path(temporary), lambda: None, name)
        return (Path(temporary) / "confusion.png").read_bytes()


def figure_state(folder: Path) -> str:
    """By its bytes."""
    held = (folder / "confusion.png").read_bytes()
    return next((name for name in (OLD, NEW) if figure(name) == held), MIXED)


# --------------------------------------------------------------------------- downloads


CONTENT = "".join(
    f"SET_{i}\thttps://example.org\t" + "\t".join(f"GENE{g}" for g in range(i, i + 40)) + "\n"
    for i in range(400)
).encode()


class Slow(BaseHTTPRequestHandler):
    """Serves one file, in twenty parts."""

    def do_GET(self) -> None:
        """Send it."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        step = len(CONTENT) // 20 + 1
        for start in range(0, len(CONTENT), step):
            self.wfile.write(CONTENT[start : start + step])
            self.wfile.flush()
            time.sleep(0.003)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@contextmanager
def served() -> Iterator[str]:
    """A server in a process of its own."""
    with HTTPServer(("127.0.0.1", 0), Slow) as server:
        child = os.fork()
        if child == 0:
            # Clients that are killed are no errors.
            server.handle_error = lambda *_: None  # type: ignore[method-assign]
            server.serve_forever()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def download(folder: Path, mark: Callable[[], Any]) -> None:
    """Load a collection that is not in the cache."""
    os.environ["TOSICA_CACHE"] = str(folder)
    mark()
    assert len(tosica.gs.load("human_hallmark")) == 400


def downloaded_state(folder: Path) -> str:
    """What can be loaded without a server."""
    os.environ |= {"TOSICA_CACHE": str(folder), "TOSICA_MSIGDB_URL": "http://127.0.0.1:9"}
    try:
        sets = tosica.gs.load("human_hallmark")
    except ConnectionError:
        return OLD
    return NEW if len(sets) == 400 and (folder / HALLMARK).read_bytes() == CONTENT else MIXED


# --------------------------------------------------------------------------- all operations


def nothing(*_: Any) -> None:
    """Do nothing."""


def _writes(title: str, run: Callable[..., Any], state: Callable[[Path], str]) -> Operation:
    """An operation that can make both states."""
    return Operation(
        title, lambda f: run(f, nothing, OLD), run, state, lambda f: run(f, nothing, NEW)
    )


def _save_alone(folder: Path, mark: Callable[[], Any], name: str = NEW) -> None:
    save(folder, mark, name, save_anndata=False)


OPERATIONS = {
    "save": _writes("`save(overwrite=True)`", _save_alone, saved_state),
    "save_both": _writes(
        "`save(overwrite=True, save_anndata=True)`: model and reference", save, saved_state
    ),
    "save_first": Operation(
        "`save(save_anndata=True)` to a new folder",
        nothing,
        save,
        saved_state,
        lambda folder: make_model(NEW).save(folder / "model", overwrite=True, save_anndata=True),
    ),
    "train": Operation(
        "`load`, `train` further and `save`",
        lambda folder: _save_alone(folder, nothing, OLD),
        train_further,
        trained_state,
        lambda folder: train_further(folder, nothing),
    ),
    "annotate": Operation(
        "`annotate` a backed `.h5ad` file",
        lambda folder: make_cells(OLD).write_h5ad(folder / "query.h5ad"),
        annotate,
        annotated_state,
        lambda folder: annotate(folder, nothing),
    ),
    "download": Operation(
        "`gs.load` of a collection that is downloaded",
        nothing,
        download,
        downloaded_state,
        lambda folder: download(folder, nothing),
    ),
    "write_gmt": _writes("`gs.write_gmt`", write_gmt, gmt_state),
    "write_synthetic": _writes("`datasets.write_synthetic`", write_synthetic, synthetic_state),
    "to_seurat": _writes("`io.to_seurat`: four tables and a script", to_seurat, seurat_state),
    "figure": _writes("a plot with `save=`", draw, figure_state),
}


# --------------------------------------------------------------------------- processes


def in_child(call: Callable[[], Any]) -> Any:
    """Call in a process that ends afterwards, and return what it returned."""
    read, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            answer = (True, call())
        except BaseException:
            answer = (False, traceback.format_exc())
        with os.fdopen(into, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(into)
    with os.fdopen(read, "rb") as pipe:
        good, value = pickle.load(pipe)
    os.waitpid(child, 0)
    if not good:
        raise RuntimeError(value)
    return value


def durations(run: Callable[[Callable[[], Any]], Any]) -> tuple[float, float]:
    """Seconds until it writes, and from then to the end; medians of three."""

    def timed() -> tuple[float, float]:
        moments = [time.perf_counter()]
        run(lambda: moments.append(time.perf_counter()))
        return moments[1] - moments[0], time.perf_counter() - moments[1]

    before, writing = np.median([in_child(timed) for _ in range(3)], axis=0)
    return float(before), float(writing)


def kill(run: Callable[[Callable[[], Any]], Any], delay: float, *, when_it_writes: bool) -> bool:
    """Kill a process some seconds after its start or its first write; ``False`` if it has ended."""
    read, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run(lambda: os.write(into, b"."))
        finally:
            os._exit(0)
    if when_it_writes:
        os.read(read, 1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    os.close(read)
    os.close(into)
    return os.WIFSIGNALED(status)


def temporaries(folder: Path) -> int:
    """Number of files and folders that only a process in the midst of writing has."""
    return sum(path.name.startswith((".", "tmp")) for path in folder.rglob("*"))


def measure(name: str, n_kills: int, rng: np.random.Generator) -> dict[str, Any]:
    """Kill one operation many times, and count what is left."""
    operation = OPERATIONS[name]
    counts = dict.fromkeys(("too late", OLD, NEW, "broken", "left", "left after success"), 0)
    errors: list[str] = []
    with TemporaryDirectory() as temporary:
        start = Path(temporary) / "start"
        start.mkdir()
        in_child(lambda: operation.prepare(start))
        warm = Path(temporary) / "warm"
        shutil.copytree(start, warm)

        def on(folder: Path) -> Callable[[Callable[[], Any]], Any]:
            return lambda mark: operation.run(folder, mark)

        before, writing = durations(on(warm))
        for i in range(n_kills):
            folder = Path(temporary) / f"{i}"
            when_it_writes = bool(i % 2)
            for _ in range(MOST_DRAWS):
                shutil.copytree(start, folder)
                delay = rng.uniform(0, writing if when_it_writes else before + writing)
                if kill(on(folder), delay, when_it_writes=when_it_writes):
                    break
                counts["too late"] += 1
                shutil.rmtree(folder)
            else:
                raise RuntimeError(f"{name} had ended {MOST_DRAWS} times before it was killed.")
            counts["left"] += temporaries(folder) > 0
            try:
                state = in_child(lambda at=folder: operation.state(at))
                in_child(lambda at=folder: operation.again(at))
                after = in_child(lambda at=folder: operation.state(at))
                if after != (OLD if name == "annotate" else NEW):
                    raise RuntimeError(f"It is {after} after a success.")
            except RuntimeError as error:
                state = MIXED
                errors.append(str(error))
            counts["broken" if state == MIXED else state] += 1
            counts["left after success"] += temporaries(folder) > 0
            shutil.rmtree(folder)
    return {"before": before, "writing": writing, "counts": counts, "errors": errors}


def report(result: dict[str, Any]) -> str:
    """The page."""
    rows = []
    for name, of in result["operations"].items():
        counts = of["counts"]
        rows.append(
            [
                OPERATIONS[name].title,
                f"{1000 * (of['before'] + of['writing']):.0f} ms",
                *(counts[key] for key in (OLD, NEW, "broken")),
                counts["left"],
                counts["left after success"],
                counts["too late"],
            ]
        )
    head = ["", "duration", "old state", "new state", "broken", "temporary files left"]
    head += ["left after the next success", "drawn anew"]
    lines = [
        "# What a killed process leaves",
        "",
        "Written by `python -m benchmarks.kill`. Each operation, on "
        f"{N_CELLS} made-up cells, was killed {result['n_kills']} times",
        "by SIGKILL at a random moment: half of the moments are uniform over the operation, half "
        "over the part of it that writes.",
        "If the process had ended before its moment, it was not counted, and another moment was "
        "drawn (*drawn anew*).",
        "Afterwards another process read the files as a user would, the reference before the "
        "model. *Broken* counts what cannot be",
        "read, is incomplete, or is of both states. Then the operation was run again until its "
        "end.",
        "",
        *table(head, rows),
        "",
        "- `annotate` writes to the object in memory, also if the expression is read from a file, "
        "so that the file stays as it was.",
        "  anndata writes to it when you call `adata.write_h5ad()` without a name. That is not "
        "atomic: give another name.",
        "- If a process is killed between the renames of the reference and of the model, the new "
        "model is still in a temporary folder.",
        "  `load` reads it from there, and the next `save` moves it to its place.",
        "- If a process is killed between the renames of tables for Seurat, their script refuses "
        "the folder until `to_seurat` is called again.",
        "  Such folders are counted as old.",
        "- A power failure was not tried. Files are written to the disk (`fsync`) before they are "
        "renamed.",
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica", "scvi"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # A process that was forked cannot use the threads of its parent.
    torch.set_num_threads(1)
    rng = np.random.default_rng(given.seed)
    result: dict[str, Any] = {"n_kills": given.kills, "operations": {}, "versions": versions()}
    with warnings.catch_warnings(), served() as url:
        warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
        warnings.filterwarnings("ignore", ".*treespec, LeafSpec")
        # Once, and not in each of the processes that are killed.
        for name in (OLD, NEW):
            for make in (make_model, make_annotated, synthetic_sum, figure):
                make(name)
        os.environ |= {"TOSICA_MSIGDB_URL": url, "NO_PROXY": "127.0.0.1"}
        for name in given.operations:
            result["operations"][name] = measure(name, given.kills, rng)
            print(name, result["operations"][name]["counts"], flush=True)
    write(given.out, "kill", result, report(result))
    if any(of["counts"]["broken"] for of in result["operations"].values()):
        raise SystemExit("Some operations left what is neither the old state nor the new one.")


if __name__ == "__main__":
    main()
