"""The examples in the docstrings."""

import doctest
import importlib

import pytest
import torch


@pytest.mark.parametrize("module", ["_handmade", "_loss", "_scores", "_tokens", "_train"])
def test_examples(module):
    found = importlib.import_module(f"circuitkit.induction.{module}")
    result = doctest.testmod(found, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0
