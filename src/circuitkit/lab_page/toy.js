/**
 * Chapter 5's toy: two heads, three trigrams. The reader sets what each head writes and sees the library's verdict.
 */

import { h, signed } from "./dom.js";

/** What each head writes on C1, C2 and C3, as `hand_specified(2, 3)` has it. */
const WRITES = [[4, -2, 3], [-2, 4, 3]];
/** The heads that look at the source from B1, B2 and B3. */
const LOOKS = [[0], [1], [0, 1]];
const TOKENS = 8;
const ENOUGH = 1;

/**
 * The log-odds of the correct token minus those of a uniform guess, when only these heads are on, and whether it is
 * predicted.
 * The destination's own token has logit 1 from its embedding, all tokens that nobody writes on have 0.
 * @param {number[][]} writes @param {number} trigram @param {number[]} heads
 */
export function gain(writes, trigram, heads) {
  const there = LOOKS[trigram].filter((head) => heads.includes(head));
  const written = [0, 1, 2].map((i) => there.reduce((sum, head) => sum + writes[head][i], 0));
  const others = [...written.filter((_, i) => i !== trigram), 1, ...Array(TOKENS - 4).fill(0)];
  const odds = written[trigram] - Math.log(others.reduce((sum, value) => sum + Math.exp(value), 0));
  const over = odds + Math.log(TOKENS - 1);
  const predicted = written[trigram] > Math.max(...others) && over > ENOUGH;
  return { gain: over, predicted, written };
}

/**
 * A token is predicted if it has the largest logit and a gain above 1. A trigram is learned if both heads together predict it, and
 * a head carries it if it is predicted whichever other head is switched off.
 * @param {number[][]} writes @param {number} trigram
 */
export function verdict(writes, trigram) {
  const sets = [[0], [1], [0, 1]].map((heads) => ({ heads, ...gain(writes, trigram, heads) }));
  const worst = [0, 1].map((head) => sets.filter((one) => one.heads.includes(head)));
  const carriers = [0, 1].filter((head) => worst[head].every((one) => one.predicted));
  const learnt = sets[2].predicted;
  const least = worst.map((some) => Math.min(...some.map((one) => one.gain)));
  const said = !learnt ? "not learned" : carriers.length ? carriers.map((head) => `head ${head}`).join(" and ") : "no head alone";
  return { sets, carriers, learnt, gain: least, said };
}

const ADDRESS = /^#toy:((?:-?\d(?:\.5)?,){5}-?\d(?:\.5)?)$/;

/** The six sliders of an address, or null. @param {string} address @returns {number[][] | null} */
export function fromToyAddress(address) {
  const found = ADDRESS.exec(address.replace(/%2C/gi, ","))?.[1].split(",").map(Number);
  return found?.every((value) => Math.abs(value) <= 6) ? [found.slice(0, 3), found.slice(3)] : null;
}

/** The lines of Python that compute the same verdict. @param {number[][]} writes */
export function toyPython(writes) {
  const rows = writes.map((row) => `[${row.map((value) => value.toFixed(1)).join(", ")}]`).join(", ");
  return [
    "from dataclasses import replace",
    "import torch",
    "import circuitkit as ck",
    "from circuitkit_book import superposition_models as toy",
    "from circuitkit_book.superposition_task import trigram_verdict",
    "",
    "model = toy.hand_specified(n_heads=2, n_trigrams=3)",
    "heads = ck.heads_of(model)",
    "W_O = heads.W_O.clone()",
    `W_O[:, 0, 4:7] = torch.tensor([${rows}])`,
    "model = toy.toy_model(replace(heads, W_O=W_O), model.task)",
    "verdict = trigram_verdict(model, rows=20)",
    "print(verdict.carried, verdict.gain)  # by head and trigram; gain with the worst set of others",
  ].join("\n");
}

class CircuitToy extends HTMLElement {
  connectedCallback() {
    if (this.classList.contains("cl-live")) return;
    this.writes = WRITES.map((row) => [...row]);
    /** @type {number[][][]} */
    this.past = [];
    this.moving = false;
    this.rows = h("tbody");
    this.live = h("p", { class: "cl-status", role: "status", "aria-live": "polite" });
    /** @type {HTMLInputElement[]} */
    this.sliders = [];
    const heads = [0, 1].map((head) =>
      h("fieldset", {}, h("legend", {}, `Head ${head} writes`), ...[0, 1, 2].map((i) => this.slider(head, i))),
    );
    const columns = ["trigram", "carried by", "head 0 alone", "head 1 alone", "both"];
    const caption = h("caption", {}, "Each cell shows the token with the largest logit when only these heads are on, and the gain of the correct token. The correct token is predicted if it has the largest logit and a gain above 1. A head carries a trigram if the token is predicted whichever other head is switched off.");
    const table = h("table", {}, caption, h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))), this.rows);
    const button = (/** @type {string} */ name, /** @type {() => void} */ click) => h("button", { type: "button", class: "cl-button", click }, name);
    this.undo = button("Undo", () => this.back());
    this.link = /** @type {HTMLInputElement} */ (h("input", { type: "text", readonly: true, class: "cl-link", hidden: true, "aria-label": "The link to this setting" }));
    this.code = h("code");
    const python = h(
      "details",
      { class: "ct-python" },
      h("summary", {}, "Show the Python"),
      h("pre", { class: "cl-code", tabindex: 0, role: "region", "aria-label": "Python" }, this.code),
      button("Copy the Python", () => this.copy(this.code?.textContent ?? "", "The Python is copied")),
    );
    const actions = h("div", { class: "cl-actions" }, this.undo, button("Reset", () => this.set(WRITES, "Reset")), button("Copy a link", () => this.copyLink()));
    this.replaceChildren(
      h("div", { class: "ct-heads" }, heads),
      h("div", { class: "ct-table", tabindex: 0, role: "region", "aria-label": "Which head carries which trigram" }, table),
      this.live,
      actions,
      this.link,
      python,
    );
    this.classList.add("cl-live");
    this.addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.key !== "z") return;
      event.preventDefault();
      this.back();
    });
    this.draw();
    const follow = () => {
      const asked = fromToyAddress(location.hash);
      if (!asked) return;
      this.set(asked, "From the link");
      this.scrollIntoView({ behavior: "instant" });
    };
    addEventListener("hashchange", follow);
    follow();
  }

  /** @param {number[][]} writes @param {string} said @param {boolean} [undoable] */
  set(writes, said, undoable = true) {
    if (String(writes) === String(this.writes)) return;
    if (undoable) this.past?.push((this.writes ?? []).map((row) => [...row]));
    this.writes = writes.map((row) => [...row]);
    this.moving = false;
    this.sliders?.forEach((input, k) => this.show(input, writes[Math.floor(k / 3)][k % 3]));
    this.draw(said);
  }

  back() {
    const before = this.past?.pop();
    if (before) this.set(before, "Undone", false);
  }

  async copyLink() {
    const address = new URL(`#toy:${String(this.writes)}`, location.href).href;
    await this.copy(address, "The link is copied");
    if (!this.link) return;
    this.link.value = address;
    this.link.hidden = false;
  }

  /** @param {string} text @param {string} said */
  async copy(text, said) {
    if (!this.live) return;
    try {
      await navigator.clipboard.writeText(text);
      this.live.textContent = said;
    } catch {
      this.live.textContent = "The browser does not let the page copy; select the text and copy it";
    }
  }

  /** @param {HTMLInputElement} input @param {number} value */
  show(input, value) {
    input.value = String(value);
    if (input.nextElementSibling) input.nextElementSibling.textContent = signed(value);
  }

  /** @param {number} head @param {number} i */
  slider(head, i) {
    const input = /** @type {HTMLInputElement} */ (
      h("input", { type: "range", min: -6, max: 6, step: 0.5, value: this.writes?.[head][i], "aria-label": `head ${head} on C${i + 1}` })
    );
    input.addEventListener("input", () => {
      if (!this.writes || !this.past) return;
      // A stretch of sliding is one step for undo.
      if (!this.moving) this.past.push(this.writes.map((row) => [...row]));
      this.moving = true;
      this.writes[head][i] = Number(input.value);
      this.show(input, Number(input.value));
      this.draw();
    });
    input.addEventListener("change", () => (this.moving = false));
    this.sliders?.push(input);
    return h("label", {}, h("span", {}, `C${i + 1}`), input, h("output", {}, signed(WRITES[head][i])));
  }

  /** @param {string} [message] */
  draw(message = "") {
    if (!this.writes || !this.rows || !this.live || !this.code || !this.link) return;
    const writes = this.writes;
    const before = this.said;
    const found = [0, 1, 2].map((trigram) => verdict(writes, trigram));
    this.said = found.map((one) => one.said);
    this.rows.replaceChildren(
      ...found.map((one, trigram) => {
        const cells = one.sets.map(({ written, gain: more }) => {
          const top = Math.max(...written);
          const level = written.flatMap((value, k) => (value === top ? [`C${k + 1}`] : []));
          const first = top > 1 ? level.join(" = ") : "none";
          return h("td", {}, h("b", {}, first), level.length > 1 && top > 1 ? " (equal)," : "", ` gain ${signed(more)}`);
        });
        const kind = one.learnt && one.carriers.length ? "ct-yes" : "ct-no";
        return h("tr", {}, h("th", { scope: "row" }, `B${trigram + 1} → C${trigram + 1}`), h("td", { class: kind }, one.said), ...cells);
      }),
    );
    const changed = this.said.flatMap((text, i) => (before && before[i] !== text ? [`B${i + 1}: ${text}`] : []));
    if (message || changed.length) this.live.textContent = [message, changed.join("; ")].filter(Boolean).join(". ");
    this.undo?.setAttribute("aria-disabled", String(!this.past?.length));
    this.code.textContent = toyPython(writes);
    this.link.hidden = true;
  }
}

customElements.define("circuit-toy", CircuitToy);
