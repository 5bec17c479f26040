"""Both forms of the arithmetic, for tests that hold for either."""

import pytest

from tests.helpers.native_ops import kernels_named


@pytest.fixture(params=["tensorflow", "native"])
def kernels(request):
    return kernels_named(request.param)
