/**
 * Chapter 5's toy: two heads, three trigrams. The reader moves what each head writes; beside it stands the library's verdict.
 */

import { h, signed } from "./dom.js";

/** What each head writes on C1, C2 and C3, as `hand_specified(2, 3)` has it. */
const WRITES = [[4, -2, 3], [-2, 4, 3]];
/** The heads that look at the source from B1, B2 and B3. */
const LOOKS = [[0], [1], [0, 1]];
const TOKENS = 8;
const ENOUGH = 1;

/**
 * How far the log-odds of a due completion lie above those of a guess, when these heads are there; whether it is on top,
 * and whether it is the first of those that are highest.
 * The destination's own token has logit 1 from its embedding, all tokens that nobody writes on have 0.
 * @param {number[][]} writes @param {number} trigram @param {number[]} heads
 */
export function gain(writes, trigram, heads) {
  const there = LOOKS[trigram].filter((head) => heads.includes(head));
  const written = [0, 1, 2].map((i) => there.reduce((sum, head) => sum + writes[head][i], 0));
  const others = [...written.filter((_, i) => i !== trigram), 1, ...Array(TOKENS - 4).fill(0)];
  const odds = written[trigram] - Math.log(others.reduce((sum, value) => sum + Math.exp(value), 0));
  const due = written[trigram];
  const most = due > Math.max(1, ...written.slice(0, trigram)) && due >= Math.max(...written.slice(trigram));
  return { gain: odds + Math.log(TOKENS - 1), most, first: due > Math.max(...others), written };
}

/**
 * A head carries a trigram if the completion stays on top, with a gain above 1, whatever other head is taken out.
 * @param {number[][]} writes @param {number} trigram
 */
export function verdict(writes, trigram) {
  const sets = [[0], [1], [0, 1]].map((heads) => ({ heads, ...gain(writes, trigram, heads) }));
  const worst = [0, 1].map((head) => sets.filter((one) => one.heads.includes(head)));
  const carriers = [0, 1].filter((head) => worst[head].every((one) => one.first && one.gain > ENOUGH));
  const learnt = sets[2].most && sets[2].gain > ENOUGH;
  const least = worst.map((some) => Math.min(...some.map((one) => one.gain)));
  const said = !learnt ? "not learnt" : carriers.length ? carriers.map((head) => `head ${head}`).join(" and ") : "no head alone";
  return { sets, carriers, learnt, gain: least, said };
}

class CircuitToy extends HTMLElement {
  connectedCallback() {
    if (this.classList.contains("cl-live")) return;
    this.writes = WRITES.map((row) => [...row]);
    this.rows = h("tbody");
    this.live = h("p", { class: "cl-said", role: "status", "aria-live": "polite" });
    /** @type {HTMLInputElement[]} */
    this.sliders = [];
    const heads = [0, 1].map((head) =>
      h("fieldset", {}, h("legend", {}, `head ${head} writes`), ...[0, 1, 2].map((i) => this.slider(head, i))),
    );
    const columns = ["asked", "verdict", "head 0 alone", "head 1 alone", "both"];
    const table = h("table", {}, h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))), this.rows);
    const reset = h("button", { type: "button", class: "cl-button", click: () => this.reset() }, "As it was");
    this.replaceChildren(h("div", { class: "ct-heads" }, heads), h("div", { class: "ct-table", tabindex: 0, role: "region", "aria-label": "Who carries what" }, table), this.live, reset);
    this.classList.add("cl-live");
    this.draw();
  }

  /** @param {number} head @param {number} i */
  slider(head, i) {
    const value = h("output", {});
    const input = /** @type {HTMLInputElement} */ (
      h("input", { type: "range", min: -6, max: 6, step: 0.5, value: this.writes[head][i], "aria-label": `head ${head} on C${i + 1}` })
    );
    const show = () => (value.textContent = signed(Number(input.value)));
    input.addEventListener("input", () => {
      this.writes[head][i] = Number(input.value);
      show();
      this.draw();
    });
    show();
    this.sliders.push(input);
    return h("label", {}, h("span", {}, `C${i + 1}`), input, value);
  }

  reset() {
    this.sliders.forEach((input, k) => {
      input.value = String(WRITES[Math.floor(k / 3)][k % 3]);
      input.dispatchEvent(new Event("input"));
    });
  }

  draw() {
    const before = this.said;
    const found = [0, 1, 2].map((trigram) => verdict(this.writes, trigram));
    this.said = found.map((one) => one.said);
    this.rows.replaceChildren(
      ...found.map((one, trigram) => {
        const cells = one.sets.map(({ written, gain: more }) => {
          const top = Math.max(...written);
          const first = top > 1 ? `C${written.indexOf(top) + 1}` : "none";
          return h("td", {}, h("b", {}, first), ` gain ${signed(more)}`);
        });
        const kind = one.learnt && one.carriers.length ? "ct-yes" : "ct-no";
        return h("tr", {}, h("th", { scope: "row" }, `B${trigram + 1}, due C${trigram + 1}`), h("td", { class: kind }, one.said), ...cells);
      }),
    );
    const changed = this.said.flatMap((text, i) => (before && before[i] !== text ? [`trigram ${i + 1}: ${text}`] : []));
    if (changed.length) this.live.textContent = changed.join("; ");
  }
}

customElements.define("circuit-toy", CircuitToy);
