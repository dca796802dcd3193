"""Processors that narrow a distribution down before a token is drawn from it.

They work on the candidates alone, best first, so that after a top-k nothing of the size of the vocabulary is touched.
"""

from bisect import bisect_left
from itertools import accumulate
from math import exp, log, sqrt

from ..checks import check_count, check_number
from .logits_process import LogitsWarper
from .scores import Candidates, log_sum_exp, softmax

GREEDY = "For the likeliest tokens, set do_sample=False."


class _Filter(LogitsWarper):
    """Base of warpers that leave scores as they are; at least `min_tokens_to_keep` tokens stay."""

    def __init__(self, min_tokens_to_keep: int = 1) -> None:
        check_count("min_tokens_to_keep", min_tokens_to_keep)
        self.min_tokens_to_keep = min_tokens_to_keep

    def first(self, choice: Candidates, count: int) -> Candidates:
        """The first `count` candidates, or those that have to be kept."""
        count = max(count, self.min_tokens_to_keep)
        return Candidates(choice.ids[:count], choice.values[:count])


class TemperatureLogitsWarper(LogitsWarper):
    """Divides scores by `temperature`: below 1 the best tokens gain, above 1 the others do."""

    rescales = True

    def __init__(self, temperature: float) -> None:
        self.temperature = check_number("temperature", temperature, above=0, hint=GREEDY)

    def warp(self, choice: Candidates) -> Candidates:
        return Candidates(choice.ids, [value / self.temperature for value in choice.values])


class TopKLogitsWarper(_Filter):
    """Keeps the `top_k` best tokens, and those that tie with the last of them."""

    def __init__(self, top_k: int, min_tokens_to_keep: int = 1) -> None:
        super().__init__(min_tokens_to_keep)
        check_count("top_k", top_k)
        self.top_k = max(top_k, min_tokens_to_keep)

    @property
    def limit(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.top_k

    def warp(self, choice: Candidates) -> Candidates:
        if len(choice.ids) <= self.top_k:
            return choice
        least = choice.values[self.top_k - 1]
        return self.first(choice, _count_from(choice.values, least))


class TopPLogitsWarper(_Filter):
    """Keeps the fewest of the best tokens whose probabilities add up to `top_p`."""

    def __init__(self, top_p: float, min_tokens_to_keep: int = 1) -> None:
        super().__init__(min_tokens_to_keep)
        self.top_p = check_number("top_p", top_p, least=0, most=1)

    def warp(self, choice: Candidates) -> Candidates:
        dropped, rest = 0, 0.0
        for probability in reversed(softmax(choice.values)):
            rest += probability
            if rest > 1 - self.top_p:
                break
            dropped += 1
        return self.first(choice, len(choice.ids) - dropped)


class TopHLogitsWarper(LogitsWarper):
    """Keeps the best tokens until their part of the entropy exceeds `top_h` of that of the 100 best."""

    limit = 100

    def __init__(self, top_h: float) -> None:
        self.top_h = check_number("top_h", top_h, above=0, most=1)

    def warp(self, choice: Candidates) -> Candidates:
        choice = Candidates(choice.ids[: self.limit], choice.values[: self.limit])
        terms = [-p * log(p) if p else 0.0 for p in softmax(choice.values)]
        allowed = self.top_h * sum(terms)
        count = max(1, sum(part <= allowed for part in accumulate(terms)))
        return Candidates(choice.ids[:count], choice.values[:count])


class MinPLogitsWarper(_Filter):
    """Keeps tokens that are at least `min_p` times as probable as the best one."""

    def __init__(self, min_p: float, min_tokens_to_keep: int = 1) -> None:
        super().__init__(min_tokens_to_keep)
        self.min_p = check_number("min_p", min_p, least=0, most=1)

    def warp(self, choice: Candidates) -> Candidates:
        if not self.min_p:
            return choice
        return self.first(choice, _count_from(choice.values, choice.values[0] + log(self.min_p)))


class TypicalLogitsWarper(_Filter):
    """Keeps the tokens whose surprise is nearest to what is expected, until they have the probability `mass`."""

    def __init__(self, mass: float = 0.9, min_tokens_to_keep: int = 1) -> None:
        super().__init__(min_tokens_to_keep)
        self.mass = check_number("typical_p", mass, above=0, below=1)

    def warp(self, choice: Candidates) -> Candidates:
        total = log_sum_exp(choice.values)
        logs = [value - total for value in choice.values]
        entropy = -sum(value * exp(value) for value in logs)
        shift = [abs(-value - entropy) for value in logs]
        order = sorted(range(len(shift)), key=shift.__getitem__)
        mass = list(accumulate(exp(logs[i]) for i in order))
        last = min(sum(part < self.mass for part in mass), len(order) - 1)
        kept = [i for n, i in enumerate(order) if n < self.min_tokens_to_keep or shift[i] <= shift[order[last]]]
        kept.sort()
        return Candidates([choice.ids[i] for i in kept], [choice.values[i] for i in kept])


class EpsilonLogitsWarper(_Filter):
    """Keeps tokens with a probability of at least `epsilon`."""

    option = "epsilon_cutoff"

    def __init__(self, epsilon: float, min_tokens_to_keep: int = 1) -> None:
        super().__init__(min_tokens_to_keep)
        self.epsilon = check_number(self.option, epsilon, above=0, below=1)

    def threshold(self, probabilities: list[float]) -> float:
        """The least probability that stays."""
        return self.epsilon

    def warp(self, choice: Candidates) -> Candidates:
        probabilities = softmax(choice.values)
        count = _count_from(probabilities, self.threshold(probabilities))
        needed = min(self.min_tokens_to_keep, len(choice.ids))
        return self.first(choice, max(count, _count_from(choice.values, choice.values[needed - 1])))


class EtaLogitsWarper(EpsilonLogitsWarper):
    """As epsilon, with a lower bar where the entropy is high: min(epsilon, sqrt(epsilon) exp(-entropy))."""

    option = "eta_cutoff"

    def threshold(self, probabilities: list[float]) -> float:
        entropy = -sum(p * log(p) for p in probabilities if p)
        return min(self.epsilon, sqrt(self.epsilon) * exp(-entropy))


class LogitNormalization(LogitsWarper):
    """Makes scores the logarithms of probabilities again."""

    def warp(self, choice: Candidates) -> Candidates:
        total = log_sum_exp(choice.values)
        return Candidates(choice.ids, [value - total for value in choice.values])


def _count_from(values: list[float], least: float) -> int:
    """How many of the descending values are at least `least`."""
    return bisect_left(values, True, key=lambda value: value < least)
