"""The claims of the documents: what they cite, their checks, and errors in their file."""

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


def claims_text(*tables: dict[str, str]) -> str:
    return "".join("[[claim]]\n" + "".join(f'{key} = "{value}"\n' for key, value in one.items()) for one in tables)


def test_every_document_has_claims_and_every_reproduction_tests_some():
    found = claims()
    assert len(found) >= 50
    assert {claim.document for claim in found} == {document.id for document in documents()}
    assert {claim.reproduction for claim in found if claim.test} == set(REPRODUCTIONS)


def test_a_claim_is_tested_by_a_reproduction_of_its_document():
    studies = {document.id: document.studies for document in documents()}
    foreign = {
        "spark-has-no-async",
        "tensorflow-slower-than-torch",
        "tensorflow-splits-the-model",
    }  # better tested there
    foreign |= {"small-data-does-not-pay"}
    tested_elsewhere = {
        claim.id for claim in claims() if claim.reproduction and claim.reproduction not in studies[claim.document]
    }
    assert tested_elsewhere == foreign


def test_no_two_claims_have_the_same_check():
    tests = [claim.test for claim in claims() if claim.test]
    assert len(set(tests)) == len(tests)


def test_claims_by_design_name_an_existing_page():
    shown = [claim.shown for claim in claims() if claim.shown]
    assert shown
    assert [page for page in shown if not (ROOT / page).is_file()] == []


def by_machine(engine: str, workload: str) -> dict[str, float]:
    """Return the training seconds of Appendix A without the run that failed."""
    return {
        record.params["machine"]: record.train_s
        for record in records("machines-and-clusters")
        if (record.engine, record.workload, record.workers, record.status) == (engine, workload, 1, "ok")
    }


def span(values) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def test_the_ratios_that_claims_quote_follow_from_the_appendix():
    published = {claim.id: claim.published for claim in claims()}
    small, large = (
        {name: spent / by_machine("tensorflow", workload)[name] for name, spent in own.items()}
        for workload, own in ((each, by_machine("spark-mllib", each)) for each in ("mnist-mlp", "emnist-mlp"))
    )
    assert f"{span(small.values())} times faster on the small data" in published["tensorflow-beats-mllib"]
    assert f"{span(large.values())} times on the large" in published["tensorflow-beats-mllib"]
    for engine in ("spark-mllib", "tensorflow"):
        few, many = by_machine(engine, "mnist-mlp"), by_machine(engine, "emnist-mlp")
        assert span([many[name] / few[name] for name in many]) in published["four-times-the-data"]


def test_the_ratio_of_dask_and_spark_follows_from_the_tables():
    times = {(record.engine, record.cores, record.params["epochs"]): record.train_s for record in records("executors")}
    ratios = [times["spark-sklearn", *key] / times["dask-sklearn", *key] for _, *key in times]
    published = {claim.id: claim.published for claim in claims()}
    assert span(ratios) in published["dask-faster-than-spark"]


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
        read_claims(claims_text({**GOOD, **changed}), "mine.toml", ["002"])
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("mine.toml: ")


@pytest.mark.parametrize("key", ["id", "document", "where", "says", "kind", "reproduction", "test"])
def test_required_keys_of_a_claim(key):
    with pytest.raises(TrainoffError, match=f"lacks `{key}`" if key != "test" else "needs exactly one"):
        read_claims(claims_text({name: value for name, value in GOOD.items() if name != key}), "mine.toml", ["002"])


def test_ids_are_unique_and_the_file_has_only_claims():
    with pytest.raises(TrainoffError, match="claim 2: the id `one` is used by another claim"):
        read_claims(claims_text(GOOD, GOOD), "mine.toml", ["002"])
    for text in ("", "x = 1", "claim = 3"):
        with pytest.raises(TrainoffError, match="expected claims and nothing else"):
            read_claims(text, "mine.toml", ["002"])
    with pytest.raises(TrainoffError, match="this is not TOML"):
        read_claims("[[claim]\n", "mine.toml", ["002"])
