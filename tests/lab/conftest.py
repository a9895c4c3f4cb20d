"""The lab, served to the one browser of the test run."""

import pytest
from browser_tools import served
from lab_tools import write


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="session")
def address(folder):
    with served(folder) as address:
        yield f"{address}/lab.html"
