"""A fixed sample of torch's own operator samples; benchmarks/import_coverage.py tries all of them."""

from __future__ import annotations

from collections import Counter

from import_coverage import Outcome, outcomes, reason, table

SPLIT = (
    *("add", "addmm", "amax", "atan2", "cat", "clamp", "einsum", "gather", "index_select", "logsumexp", "masked_fill"),
    *(
        "matmul",
        "nn.functional.conv2d",
        "nn.functional.gelu",
        "nn.functional.layer_norm",
        "nn.functional.pad",
        "permute",
    ),
    *("renorm", "softmax", "split", "tril", "where"),
)
WHOLE = ("linalg.det", "trace")
REFUSED = ("bernoulli", "combinations")


def test_a_sample_of_torch_s_samples_is_imported_and_right() -> None:
    found = dict(outcomes([*SPLIT, *WHOLE, *REFUSED], samples=1))
    statuses = {name: {outcome.status for outcome in tried} for name, tried in found.items()}
    assert {name for name, seen in statuses.items() if "wrong" in seen} == set()
    assert {name for name, seen in statuses.items() if seen == {"refused"}} == set(REFUSED)
    assert {name for name, seen in statuses.items() if seen == {"whole"}} >= set(WHOLE)
    assert {name.partition(".")[0] for name, seen in statuses.items() if seen == {"split"}} >= {
        name.partition(".")[0] for name in SPLIT
    }


def test_the_table_counts_samples_and_operators() -> None:
    every = {"a": [["split", ""], ["wrong", "x"]], "b": [["refused", "it draws random numbers here"]]}
    text = table(every)
    assert "| imported, may be split | 1 | 33.3% | 0 | 0.0% |" in text
    assert "| wrong | 1 | 33.3% | 1 | 50.0% |" in text
    assert "| it draws random numbers that a plan would change | `b` |" in text
    assert Counter(map(reason, ["a | b", "of complex64"])) == {"a / b": 1, "complex numbers": 1}
    assert Outcome("split").note == ""
