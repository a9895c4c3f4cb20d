def pytest_configure(config):
    config.addinivalue_line(
        "markers", "cuda: needs a GPU; `pytest tests -m cuda` runs every tool on it"
    )
