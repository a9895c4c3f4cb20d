"""The lab in a browser: how long 64 tokens take, whole and with a head out, beside plain multiplication in the same browser."""

import json
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/pages"), str(ROOT / "tests/lab")]
from browser_tools import served  # noqa: E402
from lab_tools import ASK, write  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from circuitkit import models  # noqa: E402
from tools.check.machine import browser as found_browser  # noqa: E402
from tools.publish.lighthouse import served as compressed  # noqa: E402

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


TASKS = """window.tasks = [];
new PerformanceObserver(list => tasks.push(...list.getEntries().map(one => one.duration))).observe({type: "longtask", buffered: true});
"""
DRAWN = """async ([does, times]) => {
    const lab = document.querySelector(".cl-lab"), act = eval(`(${does})`), taken = [], longest = [];
    for (let i = 0; i < times; i++) {
        const before = lab.dataset.drawn, start = performance.now();
        act(lab, i);
        while (lab.dataset.drawn === before || lab.hasAttribute("aria-busy")) await new Promise(done => setTimeout(done, 2));
        taken.push(performance.now() - start);
        await new Promise(done => setTimeout(done, 300)); // the browser tells of long tasks afterwards
        longest.push(Math.max(0, ...tasks.splice(0)));
    }
    return [Math.min(...taken), Math.min(...longest)]; // what other work on the machine adds is not the page's
}"""
# Asked for from within the page: a browser's driver that looks for an element is work of the page's own thread.
STARTED = """async () => {
    tasks.length = 0;
    document.querySelector(".cl-go").click();
    while (!document.querySelector(".cl-lab[data-drawn]:not([aria-busy])")) await new Promise(done => setTimeout(done, 20));
    await new Promise(done => setTimeout(done, 500));
    return Math.max(0, ...tasks);
}"""
VISITS = 5  # to the page, each from nothing
# What a reader does: take a head out or put it back, cut a wire, choose another token, type 64 tokens.
ACTS = {
    "a_head_out": "lab => lab.querySelector('.cl-switch[aria-label=L1H3]').click()",
    "another_token": "(lab, i) => lab.querySelectorAll('.cl-chips [role=option]')[5 + i].click()",
    "text_of_64_tokens": """(lab, i) => {
        const box = lab.querySelector('textarea');
        box.value = TEXT + '.'.repeat(i);
        box.dispatchEvent(new Event('input'));
    }""",
}


def as_read(browser, address: str, text: str) -> None:
    """The lab on its page, whose processor is four times slower: bytes before the first answer, time, blocking."""
    starts = []
    for visit in range(VISITS):
        page = browser.new_context().new_page()
        page.add_init_script(TASKS)
        log = page.context.new_cdp_session(page)
        sizes: list[float] = []
        log.on(
            "Network.loadingFinished",
            lambda one, sizes=sizes: sizes.append(one["encodedDataLength"]),
        )
        log.send("Network.enable")
        page.goto(f"{address}/lab.html", wait_until="networkidle")
        before = sum(sizes)
        log.send("Emulation.setCPUThrottlingRate", {"rate": 4})
        starts.append(page.evaluate(STARTED))
        if visit < VISITS - 1:
            page.context.close()
    print(f"lab_bytes_before_the_first_answer_MB {(sum(sizes) - before) / 1e6:.2f} 2")
    print(f"lab_page_blocked_by_start_ms_slowed_4_times {min(starts):.0f} 50")
    print(f"lab_page_blocked_by_start_median_of_{VISITS}_ms_slowed_4_times {median(starts):.0f} -")
    for name, does in ACTS.items():
        page.evaluate("tasks.length = 0")
        taken, blocked = page.evaluate(DRAWN, [does.replace("TEXT", json.dumps(text)), 8])
        print(f"lab_{name}_until_all_is_drawn_ms_slowed_4_times {taken:.0f} -")
        print(f"lab_page_blocked_by_{name}_ms_slowed_4_times {blocked:.0f} 50")
    page.context.close()


def main() -> None:
    text = models.load_tokenizer().decode(models.heldout_rows(1)[0, 1:64].tolist())
    base = {"model": "two-layer", "text": text, "cuts": [], "fill": "zero", "at": -1, "answer": -1}
    with (
        tempfile.TemporaryDirectory() as folder,
        served(write(Path(folder))) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=found_browser(), args=["--no-sandbox"])
        with compressed(Path(folder)) as fast:
            as_read(browser, fast, text)
        page = browser.new_page()
        page.goto(f"{address}/lab.html")
        plain = page.evaluate(TIMES, [ASK, None, True])
        for name, cuts, limit in (("whole", [], 150), ("a_head_out", ["L1H3"], 100)):
            taken = page.evaluate(TIMES, [ASK, [["run", base | {"cuts": cuts}]], False])
            print(f"lab_64_tokens_{name}/20_million_multiplications {taken / plain:.2f} -")
            # A worker has a thread of its own, which no browser slows down: four times the time that it took.
            print(f"lab_64_tokens_{name}_ms_slowed_4_times {4 * taken:.0f} {limit}")
        browser.close()


if __name__ == "__main__":
    main()
