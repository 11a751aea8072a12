"""Steps that may take long show a bar, and do not say again how the query is read."""

import pytest

import tosica

tl = tosica.tl


def _faithfulness(adata, model):
    tl.attribute(adata, model, n_steps=8)
    tl.faithfulness(adata, model)


SHOWS = {
    "annotate": lambda a, m: m.annotate(a),
    "attribute": lambda a, m: tl.attribute(a, m),
    "faithfulness": _faithfulness,
    "novelty": lambda a, m: tl.novelty(a, m),
}


@pytest.mark.parametrize("name", SHOWS)
def test_there_is_a_bar_if_it_takes_long(
    toy_model, toy_query, terminal, caplog, capsys, name
):
    toy_model.annotate(toy_query, enable_progress_bar=False)
    assert [line for line in caplog.messages if line.startswith("query: ")]
    assert "cells/s" not in terminal.getvalue()
    caplog.clear()
    SHOWS[name](toy_query, toy_model)
    assert f"{name}: 100%" in terminal.getvalue().replace(": cells", "")
    assert "cells/s" in terminal.getvalue()
    said_again = any(line.startswith("query: ") for line in caplog.messages)
    assert said_again is (name == "annotate")
    assert capsys.readouterr().out == ""
