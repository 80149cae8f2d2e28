"""What holds for all tests, however the suite was started."""

import os
import signal

from cluster.launch import Place
from cluster.template import Template

import pytest

# A suite in the background of a script is deaf to SIGINT, and so would be all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def template():
    """The one process that launchers in this process fork their workers from."""
    with Template() as template:
        yield template


@pytest.fixture
def forking(template, monkeypatch):
    """The place of workers that are forked."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # it is another one for every test
    assert template.ready({**os.environ, "OMP_NUM_THREADS": "1"}), "this machine cannot fork"
    return Place(template=template)
