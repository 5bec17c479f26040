"""The compiled operations, for tests that call them directly."""

import pytest

from bert_tf.native import library
from tests.helpers.programs import skip_without


@pytest.fixture(scope="session")
def operations():
    try:
        return library.load()
    except library.MissingLibrary as error:
        skip_without("native_ops", str(error))
