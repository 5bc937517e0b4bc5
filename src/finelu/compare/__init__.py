"""All applicable recipes, measured on one's own system: set-up, iterations, seconds a solve, memory; a recommendation.

SciPy's direct solver comes first, as the yardstick, and `fl.solve` second, called like by a user.
"""

from finelu.compare.choose import best, candidates, crossover, script, stages
from finelu.compare.kept import cache_folder
from finelu.compare.measure import compare
from finelu.compare.memory import held_bytes
from finelu.compare.model import PERMC, REFERENCES, Candidate, Comparison, Measurement, Pictures
from finelu.compare.rounds import Margin, margin

__all__ = [
    "PERMC",
    "REFERENCES",
    "Candidate",
    "Comparison",
    "Margin",
    "Measurement",
    "Pictures",
    "best",
    "cache_folder",
    "candidates",
    "compare",
    "crossover",
    "held_bytes",
    "margin",
    "script",
    "stages",
]
