"""`solve(A, b)` and `Sequence`: the choice of recipe and method for a system.

choose : the rule for recipe and method.  cost : the expected cost of an attempt.
monitor : when to switch to another attempt.  ladder : the attempts, one after the other.  attempt : a single attempt.
precision : single or double precision.  solvability : null vectors of A, as far as they are known.
singular : the verdict on an x that did not converge, by null_space, inverse_iteration and exact.
certify : certificates of an x.  solve : the public function.
sequence : many systems with factors that are kept, as long as `reuse` expects that to pay.
"""
