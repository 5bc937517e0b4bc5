"""`solve(A, b)` and `Sequence`: what solves a system is chosen here.

choose : the rule for recipe and method.  cost : what an attempt costs.  monitor : when to switch to another.
ladder : the attempts, one after the other.  attempt : one of them.  singular : what shows that there is no solution.
solve : the public function.  sequence : many systems with factors that are kept.
"""
