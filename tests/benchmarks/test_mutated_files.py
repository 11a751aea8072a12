"""The benchmark of damaged files: its page, its classes, and a sample of its mutants."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

# Of each group, a part of those that are made of small files written by the benchmark.
SHARE = 0.07


@pytest.fixture
def mutated(load_benchmark):
    return load_benchmark("mutated_files")


@pytest.fixture
def runs(load_benchmark):
    return load_benchmark("_damage_runs")


def test_the_page_is_what_was_measured(mutated, measured):
    result, page = measured("mutated_files")
    assert page == mutated.report(result)
    counts = {group: sum(counted.values()) for group, counted in result["counts"].items()}
    assert counts.pop("bomb/bomb") == len(result["bombs"])
    assert sum(counts.values()) == 5000
    assert {run["outcome"] for run in result["left"]} <= {"hdf5"}


def test_names_of_mutants_are_unique(mutated):
    names = [case.name for case in mutated.all_cases(None)]
    assert len(set(names)) == len(names)


def test_a_sample_of_mutants_is_read_or_refused_in_one_sentence(mutated, runs):
    cases = mutated.all_cases(None, SHARE)
    assert len(cases) > 190
    whole = runs.whole_digests(cases)
    results = [runs.measure_here(case, whole) for case in cases]
    bad = [result for result in results if result["outcome"] not in mutated.GOOD]
    assert bad == []
    outcomes = [result["outcome"] for result in results]
    assert all(outcomes.count(outcome) > 10 for outcome in mutated.GOOD)


def test_a_mutant_is_made_again_by_its_name(mutated, runs, tmp_path):
    for case in mutated.all_cases(None, 0.01):
        made = []
        for name in ("first", "again"):
            folder = tmp_path / name / case.name
            folder.mkdir(parents=True)
            path, what = runs.make(case, folder)
            # A gzip file of the tests' writer holds the time.
            made.append((what, None if path.suffix == ".rds" else path.read_bytes()))
        assert made[0] == made[1]


def ends(how):
    """Work that ends in this way."""
    match how:
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            while True:
                pass
        case "memory":
            np.zeros(2**40)
        case "raw":
            return {}["x"]
        case "invalid":
            raise AssertionError("names twice")
    return "digest"


@pytest.mark.parametrize("how", ["memory", "raw", "invalid", "unchanged", "different"])
def test_what_happens_is_classified(runs, how):
    whole = "digest" if how == "unchanged" else "another"
    assert runs.outcome_of(lambda: ends(how), whole)["outcome"] == how


@pytest.mark.parametrize(("how", "outcome"), [("crash", "killed"), ("hang", "hang")])
def test_the_end_of_a_process_is_noticed(mutated, runs, monkeypatch, how, outcome):
    monkeypatch.setattr(runs, "SECONDS", 1)
    whole = mutated.all_cases(None, 0.01)[:2]
    first = whole[0].name

    def work(case, digests):
        return {"name": case.name, "outcome": ends("whole" if case.name == first else how)}

    results, ended = runs.in_child(work, whole, {})
    assert [result["name"] for result in results] == [first]
    assert ended == outcome


def test_only_sentences_of_tosica_count(runs, tmp_path):
    import tosica

    def missing():
        tosica.gs.read_gmt(tmp_path / "none.gmt")

    assert runs.outcome_of(missing, None)["outcome"] == "sentence"

    def from_below():
        raise ValueError("This is a sentence, but none of the package that is measured.")

    assert runs.outcome_of(from_below, None)["outcome"] == "raw"
