"""A plugin for pytest: the tests of SciPy run by finelu's functions, without anything between.

python -m pytest -p in_place --pyargs scipy.sparse.linalg._dsolve.tests.test_linsolve   (with tests in PYTHONPATH)
"""

import finelu as fl


def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        fl.install(module)
