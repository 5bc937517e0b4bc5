"""What Cholesky's elimination of a symmetric pattern fills in, without doing it. On one thread."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.recurrences import compiled


@compiled
def elimination_tree(indptr, indices, parent):
    """parent (n,) : the first row below the diagonal in each column of the Cholesky factor, -1 of a root.

    indptr, indices : a symmetric pattern by rows; what it holds of the diagonal does not count. Cost: nearly O(nnz).
    Source: J. W. H. Liu: The role of elimination trees in sparse factorization, 1990, Algorithm 4.2.
    """
    ancestor = np.empty(parent.size, np.int64)
    for k in range(parent.size):
        parent[k] = ancestor[k] = -1
        for p in range(indptr[k], indptr[k + 1]):
            i = np.int64(indices[p])
            while i != -1 and i < k:
                above = ancestor[i]
                ancestor[i] = k
                if above == -1:
                    parent[i] = k
                i = above


@compiled
def column_counts(indptr, indices, parent, count):
    """count (n,) : entries of each column of the Cholesky factor of a symmetric pattern, the diagonal among them.

    parent : of elimination_tree. Cost: nearly O(nnz), whatever the fill.
    Source: J. R. Gilbert, E. G. Ng, B. W. Peyton: An efficient algorithm to compute row and column counts for sparse
    Cholesky factorization, 1994, Figure 3.
    """
    n = parent.size
    child, sibling = np.full(n, -1), np.full(n, -1)
    for j in range(n - 1, -1, -1):
        if parent[j] >= 0:
            sibling[j] = child[parent[j]]
            child[parent[j]] = j
    post, path, found = np.empty(n, np.int64), np.empty(n, np.int64), 0
    for root in range(n):
        if parent[root] >= 0:
            continue
        depth = 0
        path[0] = root
        while depth >= 0:
            j = path[depth]
            below = child[j]
            if below >= 0:
                child[j] = sibling[below]
                depth += 1
                path[depth] = below
            else:
                post[found] = j
                found += 1
                depth -= 1
    first = np.full(n, -1)  # of each column's subtree, the place of its first leaf in the postorder
    for k in range(n):
        j = post[k]
        count[j] = 1 if first[j] < 0 else 0
        while j >= 0 and first[j] < 0:
            first[j] = k
            j = parent[j]
    latest, leaf, ancestor = np.full(n, -1), np.full(n, -1), np.arange(n)
    for k in range(n):
        j = post[k]
        if parent[j] >= 0:
            count[parent[j]] -= 1
        for p in range(indptr[j], indptr[j + 1]):
            i = np.int64(indices[p])
            if i <= j or first[j] <= latest[i]:
                continue  # j is no leaf of the subtree of row i
            latest[i] = first[j]
            count[j] += 1
            if leaf[i] >= 0:  # the path from the last leaf is counted already, from their common ancestor up
                top = leaf[i]
                while ancestor[top] != top:
                    top = ancestor[top]
                low = leaf[i]
                while ancestor[low] != low:
                    ancestor[low], low = top, ancestor[low]
                count[top] -= 1
            leaf[i] = j
        if parent[j] >= 0:
            ancestor[j] = parent[j]
    for j in range(n):
        if parent[j] >= 0:
            count[parent[j]] += count[j]
