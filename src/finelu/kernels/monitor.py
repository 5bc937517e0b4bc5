"""The state of a Krylov method that decides whether it goes on: two small arrays on the device of the iteration.

`state` (4,) int32 and `norms` (7,) of the real dtype are written only by the kernels, so that no step waits for the
host; the host reads copies of them. Once `state[CODE]` is not RUNNING every kernel returns at once, so that x does not
change after that iteration, however late the host reads. The `.cu` files get these numbers from a generated header.
"""

# places in `state`
CODE = 0  # one of the codes below
ITERATIONS = 1  # iterations whose residual norm stands in the history
COLUMNS = 2  # of the Arnoldi basis: columns of H that are ready in this cycle
IMPROVED = 3  # 1 if x is better than all earlier iterates, so that it is kept before x changes

# places in `norms`
NORM = 0  # the newest residual norm: true at the begin of a cycle, the recurrence's inside it
TOLERANCE = 1  # max(rtol ||b||, atol)
CLAIM = 2  # norm at which the recurrence counts as converged: the tolerance, but never far below rounding
START = 3  # the smallest true residual norm at the begin of a cycle; Inf before the first
BEST = 4  # the smallest residual norm of the recurrence
DRIFT = 5  # the rounding of x as a part of the residual norm, for a method that bounds it; else 0
GROWTH = 6  # the most by which the residual norm may grow, as a factor of the first

# codes: up to BROKEN the cycle is over but another may follow, from CONVERGED on the solve is
RUNNING = 0
CLAIMED = 1  # the recurrence has converged; the true residual has not been tested yet
BROKEN = 2  # the recurrence broke down; it may be started again from the true residual
CONVERGED = 3
STAGNATED = 4
BREAKDOWN = 5
INDEFINITE = 6
INDEFINITE_PRECONDITIONER = 7
NOT_FINITE = 8
DIVERGED = 9

# Places in the array `lanczos` of minres: the recurrence; then, from BETA_1 on, data for a bound of the difference of
# the true residual and the recurrence's: a norm of the tridiagonal T, and squares and products of w and of x in this
# cycle. T and 1 / w are in units of UNIT, the norm of the first column of T, and x in units of BETA_1 / UNIT: no square
# leaves the range because the whole of A or of b is large or small.
BETA, COS, SIN, COS_OLD, SIN_OLD, PHI_BAR, EPSILON, DELTA, GAMMA, PHI, INVERSE, SCALE = range(12)

BETA_1, UNIT, SIZE, XX, XW, XW_OLD, WW, WW_OLD, WW_CROSS = range(12, 21)

# Places in the array `smoothing` of sqmr: the quasi-residual norm tau, the theta of the newest step; KEPT and TAKEN,
# the weights of the old direction and of the BiCG step in the new direction; LEFT, that of the old smoothed residual.
TAU, THETA, KEPT, TAKEN, LEFT = range(5)

# The least cosine between the residual and its product with A for which the factor of a step of idrs or bicgstabl is
# the one that minimizes the residual (Sleijpen & van der Vorst 1995).
ANGLE = 0.7

DRIFTED = 2.0  # times the norm of the recurrence that the true one is at most, as long as the recurrence is trusted
