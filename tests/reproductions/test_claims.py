"""The claims of the documents: all of them readable, each with its evidence, and every mistake told."""

from pathlib import Path

import pytest

from trainoff.errors import TrainoffError
from trainoff.reproductions.published import REPRODUCTIONS, claims, documents, read_claims, records

ROOT = Path(__file__).parents[2]
GOOD = {
    "id": "one",
    "document": "002",
    "where": "Results",
    "says": "It is so.",
    "kind": "order",
    "reproduction": "executors",
    "test": "it-is-so",
}


def written(*tables: dict[str, str]) -> str:
    return "".join("[[claim]]\n" + "".join(f'{key} = "{value}"\n' for key, value in one.items()) for one in tables)


def test_every_document_makes_claims_and_every_reproduction_tests_some():
    found = claims()
    assert len(found) >= 50
    assert {claim.document for claim in found} == {document.id for document in documents()}
    assert {claim.reproduction for claim in found if claim.test} == set(REPRODUCTIONS)


def test_a_reproduction_is_one_of_its_documents():
    studies = {document.id: document.studies for document in documents()}
    foreign = {"spark-has-no-async", "tensorflow-slower-than-torch", "tensorflow-splits-the-model"}  # better there
    foreign |= {"small-data-does-not-pay"}
    odd = {claim.id for claim in claims() if claim.reproduction and claim.reproduction not in studies[claim.document]}
    assert odd == foreign


def test_no_check_stands_for_two_claims():
    tests = [claim.test for claim in claims() if claim.test]
    assert len(set(tests)) == len(tests)


def test_what_the_design_shows_stands_on_a_page():
    shown = [claim.shown for claim in claims() if claim.shown]
    assert shown
    assert [page for page in shown if not (ROOT / page).is_file()] == []


def by_machine(engine: str, workload: str) -> dict[str, float]:
    """The train seconds of Appendix A, but for the run that failed."""
    return {
        record.params["machine"]: record.train_s
        for record in records("machines-and-clusters")
        if (record.engine, record.workload, record.workers, record.status) == (engine, workload, 1, "ok")
    }


def span(values) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def test_the_ratios_that_claims_quote_follow_from_the_appendix():
    said = {claim.id: claim.published for claim in claims()}
    small, large = (
        {name: spent / by_machine("tensorflow", workload)[name] for name, spent in own.items()}
        for workload, own in ((each, by_machine("spark-mllib", each)) for each in ("mnist-mlp", "emnist-mlp"))
    )
    assert f"{span(small.values())} times faster on the small data" in said["tensorflow-beats-mllib"]
    assert f"{span(large.values())} times on the large" in said["tensorflow-beats-mllib"]
    for engine in ("spark-mllib", "tensorflow"):
        few, many = by_machine(engine, "mnist-mlp"), by_machine(engine, "emnist-mlp")
        assert span([many[name] / few[name] for name in many]) in said["four-times-the-data"]


def test_the_ratio_of_dask_and_spark_follows_from_the_tables():
    times = {(record.engine, record.cores, record.params["epochs"]): record.train_s for record in records("executors")}
    ratios = [times["spark-sklearn", *key] / times["dask-sklearn", *key] for _, *key in times]
    said = {claim.id: claim.published for claim in claims()}
    assert span(ratios) in said["dask-faster-than-spark"]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"sais": "x"}, "claim 1 (one): `sais` is not a key of a claim; did you mean `says`?"),
        ({"where": ""}, "claim 1 (one): `where` must be a text that is not empty"),
        ({"kind": "ordr"}, "claim 1 (one): `kind` is `ordr`; did you mean `order`?"),
        ({"document": "005"}, "claim 1 (one): `document` is `005`; did you mean `002`?"),
        ({"reproduction": "executers"}, "claim 1 (one): `reproduction` is `executers`; did you mean `executors`?"),
        ({"by": "design"}, "claim 1 (one) needs exactly one of `test`, `by` and `not-comparable`, and has 2"),
        ({"because": "so"}, '`because` and `shown` belong to `by = "design"`, and both to it'),
        ({"test": "It is so"}, "`test` must be small letters and digits with hyphens between them"),
    ],
)
def test_a_mistake_is_named_with_its_claim(changed, sentence):
    with pytest.raises(TrainoffError) as caught:
        read_claims(written({**GOOD, **changed}), "mine.toml", ["002"])
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("mine.toml: ")


@pytest.mark.parametrize("key", ["id", "document", "where", "says", "kind", "reproduction", "test"])
def test_what_a_claim_needs_cannot_be_left_out(key):
    with pytest.raises(TrainoffError, match=f"lacks `{key}`" if key != "test" else "needs exactly one"):
        read_claims(written({name: value for name, value in GOOD.items() if name != key}), "mine.toml", ["002"])


def test_an_id_is_there_once_and_nothing_else_is_in_the_file():
    with pytest.raises(TrainoffError, match="claim 2: there is a claim `one` already"):
        read_claims(written(GOOD, GOOD), "mine.toml", ["002"])
    for text in ("", "x = 1", "claim = 3"):
        with pytest.raises(TrainoffError, match="expected claims and nothing else"):
            read_claims(text, "mine.toml", ["002"])
    with pytest.raises(TrainoffError, match="this is not TOML"):
        read_claims("[[claim]\n", "mine.toml", ["002"])
