"""What `import circuitkit` adds to `import torch`, and what a shipped model costs once transformer-lens is there."""

import subprocess
import sys
import time


def process(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    return time.perf_counter() - start


def best(codes: dict[str, str], rounds: int = 5) -> dict[str, float]:
    """The fastest of several whole processes each, taken in turns so that a busy machine disturbs all alike."""
    taken = {name: [] for name in codes}
    for _ in range(rounds):
        for name, code in codes.items():
            taken[name].append(process(code))
    return {name: min(seconds) for name, seconds in taken.items()}


LOAD = """
import time
from transformer_lens.model_bridge import TransformerBridge
import circuitkit
for name in circuitkit.list_models():
    start = time.perf_counter()
    circuitkit.load_model(name)
    print(f"load-{name}-seconds {time.perf_counter() - start:.3f} 0.5")
"""

if __name__ == "__main__":
    seconds = best(
        {"torch": "import torch", "both": "import torch, circuitkit", "alone": "import circuitkit"}
    )
    print(f"import-circuitkit-over-torch {seconds['both'] / seconds['torch']:.3f} 1.3")
    print(f"import-circuitkit-adds-seconds {seconds['both'] - seconds['torch']:.3f} 0.3")
    print(f"import-circuitkit-alone-seconds {seconds['alone']:.3f} -")
    print(
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", LOAD], capture_output=True, text=True
        ).stdout,
        end="",
    )
