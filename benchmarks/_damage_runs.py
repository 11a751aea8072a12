"""Make mutants, read each in a child process with limits, and classify what happens."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import select
import signal
import time
import traceback
import warnings
import zlib
from contextlib import suppress
from dis import opmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np

import tosica
from benchmarks._damage_bombs import BOMBS
from benchmarks._damage_bytes import damage_bytes, damage_unpacked
from benchmarks._damage_hdf5 import damage_hdf5
from benchmarks._damage_readers import READERS
from benchmarks._damage_sources import Source, r_files
from benchmarks._damage_values import damage_npy, damage_r, damage_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SECONDS = 10
# Memory that reading may take beside what Python has, and what may be asked for at all.
MEGABYTES, MOST_MEGABYTES = 2048, 8192
BATCH = 25


class Case(NamedTuple):
    """A mutant: its group, its number there, and the file that it is made of."""

    group: str
    number: int
    source: Source

    @property
    def name(self) -> str:
        """Group and number, by which the mutant can be made again."""
        return f"{self.group}/{self.number}"


def make(case: Case, folder: Path) -> tuple[Path, str]:
    """Write the mutant and the files beside it, and say what was done."""
    kind, way = case.group.split("/")
    if kind == "bomb":
        return BOMBS[case.source.file](folder), case.source.file
    for name, content in {
        **dict(case.source.others),
        case.source.file: case.source.content,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    path = folder / case.source.file
    rng = np.random.default_rng([27, zlib.crc32(case.group.encode()), case.number])
    if way == "members":
        return path, damage_hdf5(path, rng)
    if way == "values" and kind == "rds":
        value = case.source.value()
        what = damage_r(value, _other_r_values, rng)
        r_files().write(path, value)
        return path, what
    damage: Callable = {
        "file": damage_bytes,
        "unpacked": damage_unpacked,
        "values": damage_npy if kind == "npy" else damage_tensors,
    }[way]
    content, what = damage(case.source.content, rng)
    path.write_bytes(content)
    return path, what


def _other_r_values() -> list[Any]:
    """What may take the place of a value in an R object."""
    r = r_files()
    deep = r.plain_list()
    for _ in range(250):
        deep = r.plain_list(deep)
    others = [None, r.strings("a"), r.strings(), r.plain_list(), r.vector(np.arange(3))]
    others += [r.vector(np.ones(40)), r.matrix(np.ones((2, 2)))]
    return [*others, r.s4("dgCMatrix"), r.s4("Assay"), deep]


def outcome_of(read: Callable[[], str], whole: str | None) -> dict[str, str]:
    """Read and use a file, and classify what happened."""
    try:
        with warnings.catch_warnings():
            # A warning of numpy about damaged values is as little help as an error of numpy.
            warnings.simplefilter("error")
            # anndata still sets this option of pandas, which has nothing to do with the file.
            warnings.filterwarnings("ignore", "The 'mode.chained_assignment' option is deprecated")
            warnings.filterwarnings("ignore", "In a model of the original code")
            warnings.filterwarnings("ignore", "The query has only")
            found = read()
    except AssertionError as error:
        return {"outcome": "invalid", "text": str(error)}
    except Exception as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        chain: BaseException | None = error
        while chain is not None:
            if isinstance(chain, MemoryError):
                return {"outcome": "memory", "text": f"{_kind(error)}: {text}"}
            chain = chain.__cause__ or chain.__context__
        told = _raised_by_tosica(error) and _is_sentence(text)
        return {"outcome": "sentence" if told else "raw", "text": f"{_kind(error)}: {text}"}
    return {"outcome": "unchanged" if found == whole else "different", "text": ""}


def _kind(error: BaseException) -> str:
    """The public type of an error."""
    return next(t.__name__ for t in type(error).__mro__ if t.__module__ == "builtins")


def _raised_by_tosica(error: BaseException) -> bool:
    """Whether a raise statement of tosica made the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    inside = Path(code.co_filename).is_relative_to(Path(tosica.__file__).parent)
    return inside and code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]


def _is_sentence(text: str) -> bool:
    return text.endswith((".", "?")) and "\n" not in text and 20 < len(text) < 2000


def whole_digests(cases: Sequence[Case]) -> dict[str, str]:
    """What the whole files hold, by kind and file."""
    found: dict[str, str] = {}
    for case in cases:
        kind = case.group.split("/")[0]
        key = f"{kind} {case.source.file}"
        if key in found or kind == "bomb":
            continue
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            files = {**dict(case.source.others), case.source.file: case.source.content}
            for name, content in files.items():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).write_bytes(content)
            found[key] = READERS[kind](Path(folder) / case.source.file)
    return found


def measure_here(case: Case, whole: dict[str, str]) -> dict[str, Any]:
    """Make, read and classify one mutant in this process."""
    kind = case.group.split("/")[0]
    with TemporaryDirectory() as name:
        path, what = make(case, Path(name))
        if kind == "bomb":
            kind = path.name.split(".", 1)[1]
        key = f"{kind} {case.source.file}"
        before, start = _peak(reset=True), time.process_time()
        result = outcome_of(lambda: READERS[kind](path), whole.get(key))
        seconds, grown = time.process_time() - start, _peak() - before
        result["text"] = result["text"].replace(name, "…")
    if grown > MEGABYTES:
        result["outcome"] = "memory"
    if seconds > SECONDS:
        result["outcome"] = "hang"
    named = {"name": case.name, "file": case.source.file, "damage": what}
    return {**named, **result, "seconds": round(seconds, 2), "megabytes": round(grown)}


def _peak(*, reset: bool = False) -> float:
    """Largest memory of this process in megabytes, since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _read_by_h5py(case: Case, whole: dict[str, str]) -> dict[str, Any]:
    """Read the members of an HDF5 file with h5py alone, without those that are not there."""
    with TemporaryDirectory() as name:
        path, _ = make(case, Path(name))
        before = _peak(reset=True)
        with suppress(Exception), h5py.File(path) as file:
            file.visititems(_read_member)
    return {"megabytes": _peak() - before}


def _read_member(name: str, member: Any) -> None:
    for key in member.attrs:
        member.attrs[key]
    if isinstance(member, h5py.Dataset) and member.nbytes < 2**30:
        member[()]


def in_child(
    work: Callable, cases: Sequence[Case], whole: dict[str, str]
) -> tuple[list[dict], str | None]:
    """Results of a child process for the first cases, and how it ended before the last one."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        try:
            errors = os.dup(2)
            _limit_resources()
            for case in cases:
                os.write(sending, (json.dumps(work(case, whole)) + "\n").encode())
        except Exception:
            os.write(errors, traceback.format_exc().encode())
        finally:
            # Whatever happened: the rest of the program is the parent's.
            os._exit(0)
    os.close(sending)
    received, ended = b"", None
    # Processor time, because other work may be going on; or ten times as long without any.
    used, start = _processor_time(child), time.monotonic()
    # Making a bomb takes longer than reading it.
    limit = 6 * SECONDS if cases[0].group == "bomb/bomb" else SECONDS
    while True:
        ready, _, _ = select.select([receiving], [], [], 0.2)
        if ready:
            part = os.read(receiving, 2**16)
            if not part:
                break
            received += part
            used, start = _processor_time(child), time.monotonic()
        elif _processor_time(child) - used > limit or time.monotonic() - start > 10 * limit:
            os.kill(child, signal.SIGKILL)
            ended = "hang"
            break
    os.close(receiving)
    _, status = os.waitpid(child, 0)
    results = [json.loads(line) for line in received.split(b"\n") if line]
    if ended is None and len(results) < len(cases):
        ended = "killed" if os.WIFSIGNALED(status) else "raw"
    return results, ended


def _processor_time(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _limit_resources() -> None:
    """Limit the memory that may be asked for, and write nothing to the terminal."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_MEGABYTES * 2**20,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def measure(cases: Sequence[Case], whole: dict[str, str]) -> list[dict[str, Any]]:
    """Classify mutants. One that ends its process is read again alone, because of earlier ones."""
    done: list[dict[str, Any]] = []
    while len(done) < len(cases):
        results, ended = in_child(measure_here, cases[len(done) :], whole)
        done += results
        if ended is None:
            continue
        case = cases[len(done)]
        results, ended = in_child(measure_here, [case], whole)
        result = results[0] if results else {"name": case.name, "file": case.source.file}
        if ended is not None:
            result |= {"outcome": ended, "text": "", "damage": "", "seconds": 0, "megabytes": 0}
        done.append(result)
    for case, result in zip(cases, done, strict=True):
        if case.group.startswith("h5") and result["outcome"] in ("killed", "hang", "memory"):
            results, ended = in_child(_read_by_h5py, [case], whole)
            if results and results[0]["megabytes"] > MEGABYTES:
                ended = "memory"
            if ended in ("killed", "hang", "memory"):
                result |= {"outcome": "hdf5", "text": f"h5py alone: {ended}"}
    return done


# The batches and digests, which processes of a pool have from their parent.
_shared: list[Any] = []


def _measure(i: int) -> list[dict[str, Any]]:
    batches, whole = _shared
    return measure(batches[i], whole)


def run(cases: Sequence[Case], n_jobs: int) -> list[dict[str, Any]]:
    """Classify mutants in several processes."""
    whole = whole_digests(cases)
    batches = [cases[i : i + BATCH] for i in range(0, len(cases), BATCH)]
    _shared[:] = [batches, whole]
    if n_jobs == 1:
        return [result for i in range(len(batches)) for result in _measure(i)]
    # Processes of a pool may not have children of multiprocessing; these have children by os.fork.
    with multiprocessing.get_context("fork").Pool(n_jobs) as pool:
        return [result for done in pool.imap(_measure, range(len(batches))) for result in done]
