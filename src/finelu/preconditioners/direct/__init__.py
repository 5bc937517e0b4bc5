"""Complete factors, by a library behind the face of the other recipes.

recipe : `SparseLU`.  factors : those on the host.  analysis : which library, matching and ordering.  prepared : A as a
library gets it.  library : what they share.  superlu, klu, feral, pardiso, cudss : a library each.
"""

from finelu.preconditioners.direct.recipe import SparseLU as SparseLU
