"""Names of genes: their kinds, their translation, and matches but for hyphens."""

import time

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tosica
from tosica.gs._gene_list import GeneList, hint_for_mismatch
from tosica.gs._gene_table import ORGANISMS, gene_table, orthologs
from tosica.gs._respelling import match_respelled
from tosica.gs._spelling import describe_gene_names

HUMAN = [
    "CD3E",
    "CD19",
    "MS4A1",
    "HLA-DRA",
    "MT-ND1",
    "C1orf112",
    "RP11-34P13.7",
    "AC012345.1",
]
MOUSE = [
    "Cd3e",
    "Cd19",
    "Ms4a1",
    "H2-Aa",
    "mt-Nd1",
    "1700001G17Rik",
    "Gm1234",
    "Hba-a1",
]
ENSG = [f"ENSG{i:011d}" for i in range(1000, 1050)]
ENSMUSG = [f"ENSMUSG{i:011d}" for i in range(1000, 1050)]


def mapped(*names, organism="human", **kwargs):
    return tosica.gs.map_genes(names, organism=organism, **kwargs).to_list()


# --------------------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (HUMAN, "human symbols"),
        (MOUSE, "mouse symbols"),
        (["cd3e", "cd19", "ms4a1"], "lower-case symbols"),
        (ENSG, "human Ensembl IDs"),
        ([f"{name}.12" for name in ENSG], "human Ensembl IDs"),
        (ENSMUSG, "mouse Ensembl IDs"),
        (
            ["ENSDARG00000000001", "ENSRNOG00000000001.2"],
            "Ensembl IDs of another species",
        ),
        (["ENST00000361390", "ENSMUST00000082392.1"], "Ensembl transcript IDs"),
        (["916", "930", "4069", "100506658"], "Entrez numbers"),
        ([str(i) for i in range(200)], "row numbers"),
        ([str(i) for i in range(0, 30_000, 40)], "row numbers"),
        (["930", "916", *map(str, range(1000, 30_000, 40))], "Entrez numbers"),
        ([str(i) for i in range(100, 100_000, 99)], "Entrez numbers"),
        (["9" * 40, "1" * 30], "Entrez numbers"),
        ([*HUMAN, "ERCC spike", "actb"], "human symbols"),
        (HUMAN + MOUSE, None),
        ([], None),
    ],
)
def test_kinds(names, kind):
    assert describe_gene_names(names) == kind


@pytest.mark.parametrize(
    ("query", "reference", "words"),
    [
        (MOUSE, HUMAN, "like mouse symbols while the model's look like human symbols"),
        (HUMAN, MOUSE, "like human symbols while the model's look like mouse symbols"),
        (
            ENSMUSG,
            ENSG,
            "like mouse Ensembl IDs while the model's look like human Ensembl IDs",
        ),
        (
            ENSG,
            HUMAN,
            "like human Ensembl IDs while the model's look like human symbols",
        ),
        ([str(i) for i in range(50)], HUMAN, "tosica.io.from_seurat"),
        ([name.lower() for name in HUMAN], HUMAN, "adata.var_names.str.upper()"),
        (HUMAN, HUMAN + MOUSE, ""),
        (HUMAN, [], ""),
    ],
)
def test_hint(query, reference, words):
    hint = hint_for_mismatch(iter(query), iter(reference))
    assert words in hint
    assert bool(words) == bool(hint)


# --------------------------------------------------------------------------- translation


@pytest.mark.parametrize(
    ("organism", "names"),
    [
        (
            "human",
            {
                **{
                    "CD3E": "CD3E",
                    "ENSG00000198851": "CD3E",
                    "ENSG00000198851.10": "CD3E",
                },
                **{"SEPT7": "SEPTIN7", "IL8": "CXCL8", "PDL1": "CD274", "cd3e": None},
                **{
                    "Cd3e": None,
                    "ENSG00000198851.x": None,
                    "no such gene": None,
                    "": None,
                },
                # Ensembl has an unplaced copy under the same ID.
                "ENSG00000173674": "EIF1AX",
                # Names of their own are not cut.
                **{"HLA-A": "HLA-A", "RIMBP3.2": "RIMBP3B", "IGHV1-69-2": "IGHV1-69-2"},
                **{
                    "MT-ND1": "ND1",
                    "RP11-34P13.7": None,
                    "AC000001.1": None,
                    "RIMBP3.7": None,
                },
                # A symbol and another part.
                **{
                    "HLA-A (ENSG00000206503)": "HLA-A",
                    "HLA-A.ENSG00000206503": "HLA-A",
                },
                **{
                    "HLA-A_ENSG00000206503": "HLA-A",
                    "HLA-A_ENSG00000206503.13": "HLA-A",
                },
                **{"HLA-A-ENSG00000206503": "HLA-A", "ENSG00000206503_HLA-A": "HLA-A"},
                **{
                    "ENSG00000206503.13_HLA-A": "HLA-A",
                    "ENSG00000206503|HLA-A": "HLA-A",
                },
                **{"ENSG00000182378.13_PAR_Y_PLCXD1": "PLCXD1", "TP53|7157": "TP53"},
                **{
                    "TP53|anything": "TP53",
                    "TP53|": "TP53",
                    "HLA-A_ENSG99999999999": "HLA-A",
                },
                **{
                    "some clone_ENSG00000206503": "HLA-A",
                    "IL8_ENSG00000169429": "CXCL8",
                },
                # Where the symbol may be two genes, the ID decides.
                "SARS_ENSG00000031698": "SARS1",
                **{
                    "nothing_ENSG99999999999": None,
                    "nothing|anything": None,
                    "?|7157": None,
                },
                **{"|": None, "_": None, "ENSG": None, "ENSG00000198851_": None},
                # A symbol and the number of its repeat.
                **{"CD24.1": "CD24", "CD19-2": "CD19", "ENSG00000198851-1": "CD3E"},
                **{"CD24.0": None, "CD24.01": None, "CD24.10": None, "CD24_1": None},
                **{"CD24..1": None, ".1": None, "SEPT7.1": None, "nothing-1": None},
            },
        ),
        (
            "mouse",
            {
                **{
                    "Cd3e": "Cd3e",
                    "ENSMUSG00000032093": "Cd3e",
                    "ENSMUSG00000032093.7": "Cd3e",
                },
                **{
                    "CD3E": None,
                    "Cd3e_ENSMUSG00000032093": "Cd3e",
                    "Cd3e|12501": "Cd3e",
                },
                **{
                    "ENSMUSG00000032093.7|Cd3e": "Cd3e",
                    "Cd3e.1": "Cd3e",
                    "Ighv1-62-9": None,
                },
            },
        ),
    ],
)
def test_one_name(organism, names):
    assert {name: mapped(name, organism=organism)[0] for name in names} == names


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # Numbers are Entrez numbers where most names, or most parts beside symbols, are.
        (["916", "930.0", "4069"], ["CD3E", "CD19", "LYZ"]),
        (["0", "1", "2", "3"], [None] * 4),
        (["CD19", "LYZ", "916"], ["CD19", "LYZ", None]),
        (
            ["CD3E|916", "CD19|930", "LYZ|4069", "?|7157", "CD4|930"],
            [*HUMAN[:2], "LYZ", "TP53", None],
        ),
        (["CD3E|1", "CD19|2", "LYZ|916", "?|930"], ["CD3E", "CD19", "LYZ", None]),
        # The symbol itself is there: what is numbered is another locus. Of several none is taken.
        (["CD24", "CD24.1"], ["CD24", None]),
        (["ENSG00000198851", "CD3E-1"], ["CD3E", None]),
        (["CD3E_ENSG00000198851", "CD3E.1"], ["CD3E", None]),
        (["CD24-1", "CD24-2"], [None, None]),
    ],
)
def test_names_that_depend_on_the_others(names, expected):
    assert mapped(*names) == expected


def test_forms_of_the_result():
    names = ["CD3E", "SEPT7", "HLA-DRA"]
    # HLA-DRA has an ID on each haplotype; none is guessed.
    assert mapped(*names, to="ensembl") == ["ENSG00000198851", "ENSG00000122545", None]
    assert mapped(*names, to="entrez") == ["916", "989", "3122"]
    assert mapped("ENSG00000198851.10", "SEPT7", "LYZ", to_organism="mouse") == [
        *("Cd3e", "Septin7", None)
    ]
    # Proteins of the mitochondrion go by HGNC's names, too.
    assert mapped("MT-ND1", "MT-CO2", to_organism="mouse") == ["mt-Nd1", "mt-Co2"]
    assert mapped(
        "CD3E", "H2-AA", "1700001G17RIK", organism="mouse", ignore_case=True
    ) == [*("Cd3e", "H2-Aa", "1700001G17Rik")]
    assert mapped("C1ORF43", "cd3e", ignore_case=True) == ["C1orf43", "CD3E"]
    assert list(tosica.gs.map_genes(iter(names), organism="human").index) == names


def test_a_symbol_is_not_taken_for_an_alias_of_another_gene():
    table = gene_table("human")
    symbols = sorted(table.symbols & table.genes_of("aliases").keys())
    assert len(symbols) > 100
    assert mapped(*symbols) == symbols


def test_ambiguous_names_are_listed_and_not_guessed(
    caplog,
):
    assert mapped("SARS", "CD3E_ENSG00000177455", "CD3E") == [None, None, "CD3E"]
    for words in (
        "1 of 3 human genes",
        "SARS (SARS1 or SARS2)",
        "CD3E_ENSG00000177455 (CD3E or",
    ):
        assert words in caplog.text


def test_orthologs_are_one_to_one_both_ways():
    there, back = orthologs("human", "mouse"), orthologs("mouse", "human")
    assert len(there) == len(back) > 16_000
    assert {back[mouse]: mouse for mouse in back} == there
    # The Ensembl IDs of the last are also those of antisense genes, readthroughs or copies.
    pairs = {
        "CD3E": "Cd3e",
        "PTPRC": "Ptprc",
        "NRG1": "Nrg1",
        "CCR3": "Ccr3",
        "BACH1": "Bach1",
    }
    assert pairs.items() <= dict(there).items()
    # Two genes of the mouse answer to LYZ.
    assert "LYZ" not in there


@settings(max_examples=20)
@given(
    names=st.lists(st.text(max_size=12), max_size=20),
    organism=st.sampled_from(ORGANISMS),
)
def test_any_text_is_described_and_translated_or_missing(names, organism):
    assert describe_gene_names(reversed(names + names)) == describe_gene_names(names)
    mapped_names = tosica.gs.map_genes(names, organism=organism)
    assert list(mapped_names.index) == names
    assert all(
        gene is None or gene in gene_table(organism).symbols for gene in mapped_names
    )


def test_every_gene_is_found_by_a_composite_name_quickly():
    ids = {s: i[0] for s, i in gene_table("human").names_of("Ensembl IDs").items()}
    begin = time.process_time()
    assert mapped(*(f"{symbol}_{i}" for symbol, i in ids.items())) == list(ids)
    # Every name against every other would take minutes.
    assert time.process_time() - begin < 20


@pytest.mark.parametrize("names", ["CD3E", 5, ["CD3E", 916], None])
def test_names_of_another_type(names):
    with pytest.raises(TypeError, match="names"):
        tosica.gs.map_genes(names)


# --------------------------------------------------------------------------- organism


@pytest.mark.parametrize(
    ("names", "organism"),
    [
        (["ENSG00000198851.10"], "human"),
        (["ENSMUSG00000032093"], "mouse"),
        (["ENSMUSG00000032093", "ENSG00000198851"], None),
        (["ENSDARG00000000001"] * 30, None),
        (["CD3E", "CD19"], None),  # too few to tell
        ([], None),
    ],
)
def test_organism_of_few_and_odd_names(names, organism):
    assert GeneList(names).organism == organism
    if organism is None:
        with pytest.raises(ValueError, match="organism='human'"):
            tosica.gs.map_genes(names)


# --------------------------------------------------------------------------- hyphens

_NAMES = st.lists(st.text("A-_", min_size=1, max_size=3), unique=True, max_size=8)


@settings(max_examples=50)
@given(_NAMES, _NAMES)
def test_no_name_is_guessed(names, targets):
    """A name that differs in ``-`` and ``_`` is taken if only one fits."""

    def fold(name):
        return name.replace("_", "-")

    given_, target_index = (
        pd.Index(names, dtype=object),
        pd.Index(targets, dtype=object),
    )
    rows = np.flatnonzero(given_.isin(target_index))
    respelled = match_respelled(
        given_, target_index, target_index.get_indexer(given_[rows]), rows
    )
    actual = {
        targets[i]: names[j]
        for i, j in zip(respelled.targets, respelled.rows, strict=True)
    }
    assert actual == {
        target: next(n for n in names if fold(n) == fold(target))
        for target in set(targets) - set(names)
        if [fold(n) for n in targets].count(fold(target)) == 1
        and [fold(n) for n in names].count(fold(target)) == 1
    }


@pytest.mark.parametrize("identifiers", ["auto", "exact"])
def test_gene_sets_find_genes_of_other_spelling(identifiers):
    adata = ad.AnnData(np.ones((2, 12), dtype=np.float32))
    # "Y-0-b" may be two genes of the data.
    adata.var_names = [
        "X_0",
        "X_1-a",
        "X-2",
        "Y_0-b",
        "Y-0_b",
        *(f"G{i}" for i in range(7)),
    ]
    sets = {"x": ["X-0", "X-1-a", "X_2", "Y-0-b"], "g": [f"G{i}" for i in range(7)]}
    tosica.pp.build_mask(adata, sets, min_genes=1, identifiers=identifiers)
    n = 0 if identifiers == "exact" else 3
    assert adata.uns["tosica_mask"]["n_genes_mapped"] == n
    mask = adata.varm["tosica_mask"].toarray()
    assert list(mask[:, 0] if n else mask.any(1)[:5]) == [True] * n + [False] * (
        12 - n if n else 5
    )
