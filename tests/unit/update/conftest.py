"""Both forms of the arithmetic, for tests that hold for either."""

import pytest

from bert_tf.native.library import MissingLibrary
from bert_tf.update.kernels import NativeKernels, TensorFlowKernels
from tests.helpers.programs import skip_without


@pytest.fixture(params=["tensorflow", "native"])
def kernels(request):
    if request.param == "tensorflow":
        return TensorFlowKernels()
    try:
        return NativeKernels()
    except MissingLibrary as error:
        skip_without("native_ops", str(error))
