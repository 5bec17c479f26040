"""Tests on several hosts, which root alone can make: network namespaces of this machine."""

import pytest

from tests.helpers.programs import skip_without
from tests.helpers.small_pretraining import make_data_of_documentation, write_bert_config
from tools.hosts import find_obstacle


@pytest.fixture(scope="session", autouse=True)
def _hosts_can_be_made():
    reason = find_obstacle()
    if reason:
        skip_without("hosts", reason)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A data directory with stored masks."""
    return make_data_of_documentation(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def bert_config(tmp_path_factory):
    """The configuration of a network for it."""
    path = tmp_path_factory.mktemp("config") / "bert_config.json"
    write_bert_config(path)
    return path
