# For pyright only: every name of transformers has the type Any. Its own files would more than double the work of `make types`.
from typing import Any

def __getattr__(name: str) -> Any: ...
