"""The page of new labels: that it is what was measured, what it promises, and its tasks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def new_labels(load_benchmark):
    return load_benchmark("new_labels")


def test_the_page_is_what_was_measured(new_labels, measured):
    result, page = measured("new_labels")
    assert page == new_labels.report(result)
    runs = pd.DataFrame(result["runs"])
    own = runs[(runs["method"] == "tosica") & (runs["labeled"] == 30)]
    assert own["seed"].nunique() == 5
    assert own["changed"].max() <= 1e-6
    # What the page is for: recall of new types, and a point of macro-F1 of the others.
    of_task = own.groupby(["dataset", "query"])[["recall", "before", "after"]].mean()
    assert (of_task["recall"] >= 0.8).all()
    assert (of_task["after"] >= of_task["before"] - 0.0105).all()
    assert (own["training"] / own["seconds"]).median() >= 10


@pytest.mark.data
def test_tasks_hold_each_type_out(new_labels, shared):
    tasks = list(new_labels.held_out(shared, 0))
    assert [len([t for t in tasks if t.dataset == name]) for name in ("Kang", "lung")] == [5, 3]
    for task in tasks:
        assert task.label not in set(task.reference.obs["label"])
        for query in task.queries:
            known = query.cells.obs["known"]
            assert (known == task.label).sum() == 30
            assert set(query.cells.obs.loc[known == task.label, "label"]) == {task.label}
            for cells in (query.cells, task.reference):
                assert not set(cells.obs_names) & set(query.test.obs_names)


def test_scores(load_benchmark):
    truth = np.array(["new", "new", "a", "b"])
    before, after = np.array(["a", "a", "a", "b"]), np.array(["new", "a", "new", "b"])
    found = load_benchmark("_new_label_methods").scores("new", truth, before, after)
    assert found == {"recall": 0.5, "before": 1.0, "after": 0.5}
