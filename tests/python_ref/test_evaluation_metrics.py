import math

import pytest
import torch

from python_ref.evaluation.metrics import (
    METRICS,
    TEXT_METRICS,
    Answer,
    answer_nll,
    exact_match,
    longest_common_subsequence,
    perplexity,
    rouge_l,
    score_answer,
    string_match,
    string_match_any,
    token_accuracy,
)
from python_ref.evaluation.statistics import bootstrap_interval, wilson_interval


def test_an_answer_is_scored_token_by_token():
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.25, 0.25, 0.5]])
    answer = score_answer(probabilities.log() + 3.0, torch.tensor([0, 1, 2]))
    assert (answer.hits, answer.tokens, answer.correct) == (2, 3, False)
    assert answer.nll == pytest.approx(-(math.log(0.5) + math.log(0.2) + math.log(0.5)) / 3)
    assert score_answer(probabilities, torch.tensor([0, 2, 2])).correct


def test_answers_together():
    answers = [Answer(1, 1, 1.0), Answer(1, 3, 2.0)]
    assert exact_match(answers) == 0.5
    assert token_accuracy(answers) == 2 / 4
    assert answer_nll(answers) == pytest.approx(7 / 4)
    assert perplexity(answers) == pytest.approx(math.exp(7 / 4))


def test_references_are_looked_for_in_any_case():
    said = "The codes are 71 and BLUE-fish."
    assert string_match(said, ["blue-Fish", "71", "72"]) == pytest.approx(2 / 3)
    assert string_match_any(said, ["72", "blue"]) == 1.0
    assert string_match_any(said, ["72", "bluefish"]) == 0.0


def test_a_longer_number_is_another_one():
    assert string_match_any("It is Paragraph 15.", ["Paragraph 1"]) == 0.0
    assert string_match_any("It is paragraph 1, not 15.", ["Paragraph 1"]) == 1.0
    assert string_match("12345 and 678", ["1234", "678"]) == 0.5
    assert string_match("bluefish", ["blue"]) == 1.0


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [("abcbdab", "bdcaba", 4), ("", "abc", 0), ("abc", "abc", 3), ("abc", "cba", 1)],
)
def test_longest_common_subsequence(a, b, length):
    assert longest_common_subsequence(a, b) == length
    assert longest_common_subsequence(b, a) == length


def test_rouge_l_against_hand_computed_values():
    # Lin (2004), section 3: both share three words in order with the reference's four, the third
    # only two.
    reference = ["Police killed the gunman"]
    assert rouge_l("police kill the gunman", reference) == pytest.approx(3 / 4)
    assert rouge_l("the gunman kill police", reference) == pytest.approx(2 / 4)
    # LCS "the cat on mat", 4 of the 6 words of each: 2 * 4 / 12.
    assert rouge_l("The cat, it sat: on mat!?", ["the cat was on the mat"]) == pytest.approx(8 / 12)
    assert rouge_l("a b", ["x y", "a c"]) == pytest.approx(0.5)
    assert rouge_l("", ["words"]) == 0.0
    assert rouge_l("nothing alike", ["words"]) == 0.0


def test_every_metric_that_a_document_may_name_is_known():
    for name in ("exact_match", "string_match", "string_match_any", "perplexity", "rouge_l"):
        assert name in METRICS
    assert set(TEXT_METRICS) < set(METRICS)


def test_wilson():
    # Newcombe (1998), table I: 81 of 263.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    low, high = wilson_interval(10, 10)
    assert low == pytest.approx(10 / (10 + 1.96**2))
    assert high == pytest.approx(1.0)


def test_bootstrap_of_a_mean():
    # The mean of 400 values with deviation 1/2: +- 1.96 / 40.
    values = torch.arange(400) % 2 * 1.0
    low, high = bootstrap_interval(lambda drawn: values[drawn].mean(dim=1), 400, seed=1)
    assert low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.006)
    assert high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.006)
    again = bootstrap_interval(lambda drawn: values[drawn].mean(dim=1), 400, seed=1)
    other = bootstrap_interval(lambda drawn: values[drawn].mean(dim=1), 400, seed=2)
    assert again == (low, high)
    assert other != (low, high)


def test_a_constant_has_no_interval():
    assert bootstrap_interval(lambda drawn: drawn.sum(dim=1) * 0.0 + 3, 5, seed=0) == (3.0, 3.0)
