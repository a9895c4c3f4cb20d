"""How long each notebook runs in a fresh kernel, imports included."""

import time

from tools.notebooks.execute import execute, notebooks

if __name__ == "__main__":
    for path in notebooks():
        start = time.perf_counter()
        execute(path)
        print(f"run-{path.stem}-seconds {time.perf_counter() - start:.1f} 60", flush=True)
