"""Tests on several hosts, which root alone can make: network namespaces of this machine."""

import pytest

from tests.helpers.programs import skip_without
from tests.helpers.small_pretraining import shared_data, write_bert_config
from tools.hosts import find_obstacle


@pytest.fixture(scope="session", autouse=True)
def _hosts_can_be_made():
    reason = find_obstacle()
    if reason:
        skip_without("hosts", reason)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A data directory with stored masks."""
    return shared_data(tmp_path_factory)


@pytest.fixture(scope="session")
def bert_config(tmp_path_factory):
    """The configuration of a network for it."""
    path = tmp_path_factory.mktemp("config") / "bert_config.json"
    write_bert_config(path)
    return path
