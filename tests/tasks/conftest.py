import pytest

from tests.tasks.rows import compiling_fast

fast = pytest.fixture(compiling_fast, autouse=True, scope="package")
