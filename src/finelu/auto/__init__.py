"""`solve(A, b)` and `Sequence`: what solves a system is chosen here.

choose : the rule for recipe and method.  cost : what an attempt costs.  monitor : when to switch to another.
ladder : the attempts, one after the other.  attempt : one of them.  precision : single or double.
solvability : null vectors of A, as far as they are known.  singular : the verdict on an x that did not converge, by way
of null_space, inverse_iteration and exact.  certify : certificates of an x.
solve : the public function.  sequence : many systems with factors that are kept, as long as `reuse` says that it pays.
"""
