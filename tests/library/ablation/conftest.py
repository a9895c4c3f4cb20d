"""Token ids that every tiny model reads."""

import pytest
import torch


@pytest.fixture
def tokens():
    return torch.randint(50, (3, 11), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def other_tokens():
    return torch.randint(50, (3, 11), generator=torch.Generator().manual_seed(5))
