"""Tests on several hosts, which root alone can make: network namespaces of this machine."""

import pytest

from tools.hosts import why_not


@pytest.fixture(scope="session", autouse=True)
def _hosts_can_be_made():
    reason = why_not()
    if reason:
        pytest.skip(reason)
