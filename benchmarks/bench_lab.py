"""The lab in a browser: how long 64 tokens take, whole and with a head out, beside plain multiplication in the same browser."""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/pages"), str(ROOT / "tests/lab")]
from browser_tools import served  # noqa: E402
from lab_tools import ASK, write  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from circuitkit import models  # noqa: E402
from tools.check.machine import browser as found_browser  # noqa: E402

TIMES = """async ([ask, requests, multiply]) => {
    const run = eval(`(${ask})`), times = [];
    for (let i = 0; i < 9; i++) {
        const start = performance.now();
        if (multiply) {
            const a = new Float32Array(1000).fill(1.1), b = new Float32Array(1000).fill(0.9);
            let sum = 0;
            for (let k = 0; k < 20000; k++) for (let j = 0; j < 1000; j++) sum += a[j] * b[j];
            if (!sum) throw sum;
        } else await run([requests]);
        times.push(performance.now() - start);
    }
    return Math.min(...times.slice(1));
}"""


def main() -> None:
    text = models.load_tokenizer().decode(models.heldout_rows(1)[0, 1:64].tolist())
    base = {"model": "two-layer", "text": text, "cuts": [], "fill": "zero", "at": -1, "answer": -1}
    with tempfile.TemporaryDirectory() as folder, served(write(Path(folder))) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found_browser(), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/lab.html")
        plain = page.evaluate(TIMES, [ASK, None, True])
        for name, cuts in (("whole", []), ("a_head_out", ["L1H3"])):
            taken = page.evaluate(TIMES, [ASK, [["run", base | {"cuts": cuts}]], False])
            print(f"lab_64_tokens_{name}/20_million_multiplications {taken / plain:.2f} -")
            print(f"lab_64_tokens_{name}_ms {taken:.1f} -")
        browser.close()


if __name__ == "__main__":
    main()
