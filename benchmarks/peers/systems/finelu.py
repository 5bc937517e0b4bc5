"""finelu: `solve` as a user calls it."""

import finelu
from finelu.recent import RECENT

PACKAGES = ("finelu",)


def solve(A, b, rtol):
    RECENT.forget()  # orders and analyses of the call before
    return finelu.solve(A, b, rtol=rtol).x


SETTINGS = {"solve": solve}
