"""The compiled operations, for tests that call them directly."""

import pytest

from bert_tf.native import library


@pytest.fixture(scope="session")
def operations():
    try:
        return library.load()
    except library.MissingLibrary as error:
        pytest.skip(str(error))
