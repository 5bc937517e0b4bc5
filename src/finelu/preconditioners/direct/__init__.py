"""Complete factors by a library, with the interface of the other recipes.

recipe : `SparseLU`.  factors : the factors on the host.  analysis : the choice of library, matching and ordering.
prepared : A in the form for the libraries.  library : the base class of the libraries.
superlu, klu, feral, pardiso, cudss : one library each.
"""

from finelu.preconditioners.direct.recipe import SparseLU as SparseLU
