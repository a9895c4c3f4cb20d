"""The lab on a page of its own, made from its sources, and its worker as a test asks it."""

import base64
import sys
from types import SimpleNamespace

import numpy as np
from browser_tools import ROOT

sys.path[:0] = [str(ROOT / "book/_ext")]
from circuitkit_book import lab  # noqa: E402

# The strictest policy that the lab must live with: its own files, and a worker made of one of them.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; worker-src blob:"
PAGE = (
    "<!doctype html><html lang='en' data-theme='light'><head><meta charset='utf-8'><title>The lab</title>{policy}"
    "<link rel='icon' href='data:,'><meta name='viewport' content='width=device-width, initial-scale=1'>"
    "<link rel='stylesheet' href='_static/theme.css'><link rel='stylesheet' href='_static/circuitkit.css'><link rel='stylesheet' href='_static/lab/lab.css'>"
    "<script defer src='_static/lab/start.js'></script></head><body><main class='bd-content'><h1>The lab</h1>{lab}"
    "</main></body></html>"
)
# What the book's theme says of dark pages.
THEME = """html[data-theme="dark"] { --pst-color-background: #14181e; --pst-color-text-base: #ced6dd;
  --pst-color-text-muted: #9ca4af; background: #14181e; color: #ced6dd; }
"""
# A worker as the lab makes it. `ask` answers with the value; arrays of numbers come as base64.
ASK = """async ([requests]) => {
    window.bench ??= (async () => {
        const [engine, text] = await Promise.all([circuitLab.need("engine"), circuitLab.need("text")]);
        const worker = new Worker(URL.createObjectURL(new Blob([`(${engine})()`], {type: "text/javascript"})));
        const open = new Map();
        let count = 0;
        worker.onmessage = ({data}) => open.get(data.id)(data);
        const ask = (kind, value) => new Promise(done => {
            open.set(++count, ({value, error}) => done(error ? {error} : {value}));
            worker.postMessage({id: count, kind, value});
        });
        await ask("text", text);
        return {ask, models: new Set()};
    })();
    const {ask, models} = await bench;
    const out = [];
    for (const [kind, value] of requests) {
        if (value.model && !models.has(value.model)) {
            models.add(value.model);
            await ask("model", await circuitLab.need(`models/${value.model}`));
        }
        const answer = await ask(kind, value);
        if (answer.error) throw new Error(answer.error);
        const logits = answer.value?.logits;
        if (logits) {
            const bytes = new Uint8Array(logits.buffer);
            let text = "";
            for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
            out.push({...answer.value, patterns: null, logits: btoa(text)});
        } else out.push(answer.value);
    }
    return out;
}"""


def write(folder):
    """The page, its scripts and its weights in a folder."""
    lab.write(SimpleNamespace(outdir=str(folder), builder=SimpleNamespace(format="html")), None)
    (folder / "_static/circuitkit.css").write_bytes(
        (ROOT / "book/_static/circuitkit.css").read_bytes()
    )
    (folder / "_static/theme.css").write_text(THEME, "utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    element = lab.element("dursley", "lab.html", linked=True)
    (folder / "lab.html").write_text(PAGE.format(policy=policy, lab=element), "utf-8")
    toy = PAGE.replace("_static/lab/start.js", "_static/lab/toy.js")
    (folder / "toy.html").write_text(
        toy.format(policy=policy, lab=lab.element(lab.TOY, "lab.html")), "utf-8"
    )
    return folder


def ask(page, *requests):
    """What the worker answers to each request (kind, value)."""
    return page.evaluate(ASK, [list(requests)])


def logits(answer: dict) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(answer["logits"]), np.float32)
    return values.reshape(len(answer["tokens"]), -1)
