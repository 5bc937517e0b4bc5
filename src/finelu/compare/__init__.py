"""All applicable recipes, measured on one's own system: set-up, iterations, seconds a solve, memory; a recommendation.

SciPy's direct solver comes first, as the yardstick, and `fl.solve` second, called like by a user.
"""

from finelu.compare.choose import best, candidates, crossover, script, stages
from finelu.compare.measure import compare
from finelu.compare.memory import held_bytes
from finelu.compare.model import PERMC, REFERENCES, Candidate, Comparison, Measurement, Pictures

__all__ = [
    "PERMC",
    "REFERENCES",
    "Candidate",
    "Comparison",
    "Measurement",
    "Pictures",
    "best",
    "candidates",
    "compare",
    "crossover",
    "held_bytes",
    "script",
    "stages",
]
