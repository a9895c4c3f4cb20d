/**
 * The circuit of the day: a game on one screen. `puzzle.js` has the rules, and this file what a reader sees and does.
 */
import { openPlanted } from "./day_lab.js";
import { h, percent, s } from "./dom.js";
import { wireName, wordOf } from "./planted.js";
import { HELD, Puzzle, SQUARES } from "./puzzle.js";
import { explained, picture, shared, SIGNS } from "./reveal.js";

/** @typedef {import("./puzzle.js").Look} Look */
/** @typedef {{writer: number, reader: number, side: string}} Picked  heads by number; -1 and "" where nothing is chosen */

const here = /** @type {HTMLScriptElement} */ (document.currentScript).src;
const STORE = "circuit-of-the-day";
const SIDE_NAMES = { Q: "queries", K: "keys", V: "values" };
const FIRST = "2026-01-01";
/** No wire is chosen, because one would look like a hint. @type {Picked} */
const NOTHING = { writer: -1, reader: -1, side: "" };

/** Today in UTC, so that every reader has the same day. */
function today() {
  return new Date().toISOString().slice(0, 10);
}

/** The day that an address names, if it has begun. @param {string} address */
function dayOf(address) {
  const day = /^#day-(\d{4}-\d\d-\d\d)$/.exec(address)?.[1] ?? "";
  const real = day && !Number.isNaN(Date.parse(day)) && new Date(day).toISOString().startsWith(day);
  return real && day >= FIRST && day <= today() ? day : "";
}

/** @param {string} day @param {number} by */
function shift(day, by) {
  return new Date(Date.parse(day) + by * 86_400_000).toISOString().slice(0, 10);
}

/** A day in words. @param {string} day */
function spelled(day) {
  const months = "January February March April May June July August September October November December".split(" ");
  return `${Number(day.slice(8))} ${months[Number(day.slice(5, 7)) - 1]} ${day.slice(0, 4)}`;
}

/** A wire as a reader sees it. @param {string} name */
function wire(name) {
  return `${name.slice(0, 4)} → ${name[11]} of ${name.slice(6, 10)}`;
}

/** Moves of all days that this browser has played. @returns {Record<string, {moves: string[], over: boolean, won: boolean}>} */
function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(STORE) ?? "{}");
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch {
    return {};
  }
}

class CircuitDay extends HTMLElement {
  connectedCallback() {
    if (this.live) return;
    this.live = h("p", { class: "cd-status", role: "status" });
    /** @type {Picked | undefined} */
    this.picked = NOTHING;
    /** @type {Awaited<ReturnType<typeof openPlanted>> | undefined} */
    this.lab = undefined;
    addEventListener("hashchange", () => location.hash.startsWith("#day-") && this.open());
    addEventListener("resize", () => this.drawWires());
    const style = h("link", { rel: "stylesheet", href: new URL("day.css", here).href });
    for (const end of ["load", "error"]) style.addEventListener(end, () => this.open());
    document.head.append(style);
  }

  /** The day of the address, or today. */
  open() {
    const asked = location.hash.startsWith("#day-");
    const day = dayOf(location.hash);
    this.lab?.end();
    this.puzzle = new Puzzle(day || today());
    const { moves } = stored()[this.puzzle.day] ?? {};
    if (Array.isArray(moves)) this.puzzle.replay(moves.map(String));
    this.picked = NOTHING;
    this.build();
    this.draw();
    this.say(this.game.over ? this.verdict() : "Look at the patterns, choose a wire, and cut it.");
    if (asked && !day) this.say(`The link names no day from ${spelled(FIRST)} until today, so this is the circuit of today.`);
  }

  /** @param {string} said */
  say(said) {
    if (this.live) this.live.textContent = said;
  }

  get game() {
    return /** @type {Puzzle} */ (this.puzzle);
  }

  /** @returns {Picked} */
  get chosen() {
    return this.picked ?? NOTHING;
  }

  /** The chosen wire, or "". */
  get wire() {
    const { writer, reader, side } = this.chosen;
    return writer >= 0 && side ? `L0H${writer}->L1H${reader}.${side}` : "";
  }

  // --- the elements ------------------------------------------------------------------------------------------------

  build() {
    const { day, planted } = this.game;
    const { tokens, answer, story } = planted;
    const D = wordOf(tokens[story === "asked" ? tokens.length - 2 : tokens.length - 1]);
    const A = wordOf(answer);
    const word = (/** @type {string} */ text) => h("b", { class: "cd-word" }, text);
    const shape = { follow: `${D} ${A} … ${D}`, before: `${A} ${D} … ${D}`, asked: `${D} ${A} … ${D} ?` }[story] ?? "";
    const chips = tokens.map((token, i) => {
      const kind = i === tokens.length - 1 ? " cd-last" : wordOf(token) === D || token === answer ? " cd-again" : "";
      return h("li", { class: `cd-chip${kind}` }, written(token));
    });
    this.cards = [0, 1].map((layer) => [0, 1, 2, 3].map((head) => this.card(layer, head)));
    this.wires = s("svg", { class: "cd-wires", "aria-hidden": "true" });
    this.next = h("div", { class: "cd-next" });
    this.row = h("ol", { class: "cd-squares", "aria-label": "Your squares" });
    this.held = h("div", { class: "cd-held" });
    this.patterns = h("div", { class: "cd-patterns" });
    this.knife = h("button", { type: "button", class: "cd-cut", click: () => this.cut() });
    this.none = h("button", { type: "button", class: "cd-none", click: () => this.claim() }, "Answer: no circuit");
    this.end = h("section", { class: "cd-end", "aria-label": "The result", hidden: true });
    const rows = this.cards.map((cards, layer) => {
      const words = h("p", { class: "cd-layer" }, layer ? "Layer 1: choose the head that reads, and its input" : "Layer 0: choose the head that writes");
      const row = h("div", { class: "cd-row", role: "radiogroup", "aria-label": layer ? "Input of a head of layer 1" : "Head of layer 0" }, cards);
      return h("div", {}, layer ? [words, row] : [row, words]);
    });
    this.circuit = h("div", { class: "cd-circuit" }, this.wires, rows[1], h("div", { class: "cd-gap" }), rows[0]);
    const parts = [
      h("header", { class: "cd-top" }, h("h2", {}, spelled(day)), this.days()),
      h("ol", { class: "cd-text", "aria-label": "The text" }, chips),
      h("p", { class: "cd-question" }, "The next token of this model is ", word(A), ". It looks as if the model completes the pattern ", word(shape), ", but it may have another reason. Find the wire, or the two or three wires, that carry the answer to the end. If no wires do, answer that there is no circuit."),
      h("div", { class: "cd-board" }, this.row, this.live ?? ""),
      h("div", { class: "cd-main" }, h("div", {}, this.next, this.circuit, h("div", { class: "cd-actions" }, this.knife, this.none), this.held), this.patterns),
      this.end,
    ];
    this.replaceChildren(h("div", { class: "cd-game", role: "group", "aria-label": `The circuit of ${spelled(day)}` }, parts));
  }

  /** The way to the day before and after. */
  days() {
    const { day } = this.game;
    const link = (/** @type {string} */ to, /** @type {string} */ text) => h("a", { href: `#day-${to}` }, text);
    return h("nav", { "aria-label": "Other days" }, day > FIRST && link(shift(day, -1), "the day before"), day < today() && link(shift(day, 1), "the day after"), day < shift(today(), -1) && link(today(), "today"));
  }

  /** A head: what it attends to as a small picture, and what a reader can choose. @param {number} layer @param {number} head */
  card(layer, head) {
    const name = `L${layer}H${head}`;
    const map = h("canvas", { class: "cd-map", width: 12, height: 12, "aria-hidden": "true" });
    const radio = (/** @type {string} */ group, /** @type {string} */ value, /** @type {string} */ label) =>
      h("input", { type: "radio", name: `cd-${group}`, value, "aria-label": label, change: () => this.pick(value) });
    if (layer === 0) return h("label", { class: "cd-card", "data-head": name }, radio("writer", name, name), h("span", { class: "cd-name" }, name), map);
    const look = h("div", { class: "cd-look", click: () => this.pick(name) }, h("span", { class: "cd-name" }, name), map);
    const ports = Object.entries(SIDE_NAMES).map(([side, words]) => h("label", { class: `cd-port cd-${side}` }, radio("input", `${name}.${side}`, `${words} (${side}) of ${name}`), h("span", {}, side)));
    return h("div", { class: "cd-card", "data-head": name }, look, h("div", { class: "cd-ports" }, ports));
  }

  // --- what a reader does -------------------------------------------------------------------------------------------

  /** @param {string} value  a head, or an input of a head of layer 1 */
  pick(value) {
    const head = Number(value[3]);
    if (value[1] === "0") this.picked = { ...this.chosen, writer: head };
    else if (value[5] || head !== this.chosen.reader) this.picked = { ...this.chosen, reader: head, side: value[5] ?? "" };
    this.draw();
  }

  cut() {
    const { game, wire: name } = this;
    if (!name) {
      this.say("Choose a head of layer 0, and Q, K or V of a head of layer 1. Then cut the wire between them.");
      return;
    }
    if (game.cuts.includes(name)) {
      this.join(name);
      return;
    }
    const free = game.over;
    const before = game.look();
    const dropped = game.cut(name);
    const again = dropped ? ` Only ${HELD} wires can be cut at once, so ${wire(dropped)} is connected again.` : "";
    this.keep();
    this.draw();
    this.say(`${free ? "" : this.painted()}${this.now(before)}${again}${!free && game.over ? ` ${this.verdict()}` : ""}`);
    if (!free && game.over) this.finish();
  }

  /** @param {string} name @param {boolean} [gone]  whether its button goes away */
  join(name, gone = false) {
    const before = this.game.look();
    this.game.join(name);
    this.keep();
    this.draw();
    if (gone) this.knife?.focus();
    this.say(`${wire(name)} is connected again. ${this.now(before)}`);
  }

  claim() {
    if (this.game.over) return;
    this.game.claim();
    this.keep();
    this.draw();
    this.say(`${this.painted()}${this.game.over ? this.verdict() : "Some set of cuts takes the answer away."}`);
    if (this.game.over) this.finish();
  }

  /** The newest square in words. */
  painted() {
    const { squares } = this.game;
    return `Square ${squares.length} of ${SQUARES}: ${SIGNS[squares[squares.length - 1]][2]}. `;
  }

  /** What the model predicts now. @param {Look} before */
  now(before) {
    const { planted } = this.game;
    const now = this.game.look();
    const A = wordOf(planted.answer);
    const [was, is] = [before, now].map(({ chances }) => percent(chances[planted.answer]));
    if (now.lead <= 0) return `The model now predicts ${wordOf(now.other)}, and ${A} has ${is}.`;
    return was === is ? `The model still predicts ${A}, with ${is}.` : `The model still predicts ${A}, with ${is} (${was} before).`;
  }

  verdict() {
    const { won, squares, answers } = this.game;
    if (won) return squares.includes("none") ? "You are right: no wire carries the answer." : `You found the circuit with ${squares.length} of ${SQUARES} squares.`;
    return answers.length ? "Your squares are used up, and the circuit was not found." : "Your squares are used up: there was no circuit.";
  }

  finish() {
    // Who has not found it sees the heads of the circuit.
    const [answer] = this.game.answers.flat();
    if (!this.game.won && answer) this.picked = { writer: Number(answer[3]), reader: Number(answer[9]), side: answer[11] };
    this.draw();
    this.end?.scrollIntoView({ block: "nearest", behavior: "instant" });
  }

  keep() {
    const { day, moves, over, won } = this.game;
    try {
      localStorage.setItem(STORE, JSON.stringify({ ...stored(), [day]: { moves, over, won } }));
    } catch {
      // A browser that stores nothing plays all the same.
    }
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.result());
      this.say("The result is copied");
    } catch {
      this.say("The browser does not let the page copy; select the text and copy it");
    }
  }

  /** The lab below the result. @param {HTMLElement} box */
  async openLab(box) {
    this.say("The lab is opening …");
    try {
      this.lab?.end();
      this.lab = await openPlanted(await window.circuitLab.need("parts"), this.game, new URL(`#day-${this.game.day}`, location.href).href);
      box.replaceChildren(this.lab.host);
      this.say("The lab is open below the result.");
      this.lab.host.scrollIntoView({ block: "nearest", behavior: "instant" });
    } catch (error) {
      this.say(`This did not work: ${error instanceof Error ? error.message : error}. Try again.`);
    }
  }

  result() {
    const { day, squares, won } = this.game;
    return shared(day, squares, won, new URL(`#day-${day}`, location.href).href);
  }

  // --- what a reader sees -------------------------------------------------------------------------------------------

  draw() {
    const { game } = this;
    const look = game.look();
    const { writer, reader, side } = this.chosen;
    this.cards?.forEach((cards, layer) =>
      cards.forEach((card, head) => {
        card.classList.toggle("cd-chosen", head === (layer ? reader : writer));
        paint(/** @type {HTMLCanvasElement} */ (card.querySelector("canvas")), look.patterns[layer][head]);
        for (const input of card.querySelectorAll("input")) input.checked = input.value === (layer ? `L1H${reader}.${side}` : `L0H${writer}`);
      }),
    );
    this.classList.toggle("cd-over", game.over);
    this.row?.replaceChildren(...Array.from({ length: SQUARES }, (_, i) => square(game.squares[i])));
    if (this.knife) this.knife.textContent = !this.wire ? "Cut the chosen wire" : game.cuts.includes(this.wire) ? `Connect ${wire(this.wire)} again` : `Cut ${wire(this.wire)}`;
    this.knife?.setAttribute("aria-disabled", String(!this.wire));
    this.none?.toggleAttribute("hidden", game.over);
    const words = game.cuts.length ? [`Cut now, at most ${HELD}: `, ...game.cuts.map((name) => h("button", { type: "button", title: "Connect it again", "aria-label": `Connect ${wire(name)} again`, click: () => this.join(name, true) }, `${wire(name)} ✕`))] : ["No wire is cut. A cut stays until you connect the wire again."];
    this.held?.replaceChildren(...words);
    this.next?.replaceChildren(...this.chances(look));
    this.patterns?.replaceChildren(this.pattern(look, 1, reader), this.pattern(look, 0, writer));
    this.drawWires();
    this.drawEnd();
  }

  /** The answer and the best other token, now and before all cuts. @param {Look} look */
  chances(look) {
    const whole = this.game.look([]);
    const { answer } = this.game.planted;
    const shown = [answer, look.other].sort((a, b) => look.chances[b] - look.chances[a]);
    return shown.map((token) => {
      const bar = h("span", { class: "cd-bar", "aria-hidden": "true" }, h("span", { class: "cd-was" }), h("span", { class: "cd-is" }));
      bar.style.setProperty("--was", String(whole.chances[token]));
      bar.style.setProperty("--is", String(look.chances[token]));
      return h("div", { class: token === answer ? "cd-right" : "" }, h("b", {}, wordOf(token)), bar, h("span", {}, percent(look.chances[token])));
    });
  }

  /** The attention pattern of a head, large. @param {Look} look @param {number} layer @param {number} head */
  pattern(look, layer, head) {
    if (head < 0) return h("p", { class: "cd-point" }, `The pattern of a head of layer ${layer} is shown here, large, when you choose one.`);
    const { tokens } = this.game.planted;
    const n = tokens.length;
    const words = tokens.map((token) => () => written(token));
    const shares = look.patterns[layer][head];
    const point = (/** @type {number} */ i, /** @type {number} */ j) => `from ${wordOf(tokens[i])} to ${wordOf(tokens[j])}: ${percent(shares[i * n + j])}`;
    const end = shares.subarray((n - 1) * n);
    const said = h("p", { class: "cd-point" }, `Last token: ${point(n - 1, end.indexOf(Math.max(...end)))}`);
    const cell = (/** @type {number} */ i, /** @type {number} */ j) => {
      if (j > i) return h("td", { class: "cd-future" });
      const share = shares[i * n + j];
      const made = h("td", { pointerenter: () => (said.textContent = `Attention ${point(i, j)}`) }, h("span", { class: "cd-hidden" }, percent(share)));
      made.style.setProperty("--share", `${Math.round(Math.sqrt(share) * 100)}%`);
      return made;
    };
    return h(
      "figure",
      {},
      h(
        "table",
        {},
        h("caption", {}, `Where L${layer}H${head} looks`),
        h("thead", {}, h("tr", {}, h("td", {}), words.map((text) => h("th", { scope: "col" }, text())))),
        h("tbody", {}, words.map((text, i) => h("tr", { class: i === n - 1 ? "cd-end-row" : "" }, h("th", { scope: "row" }, text()), words.map((_, j) => cell(i, j))))),
      ),
      said,
    );
  }

  /** The chosen wire, the wires that were tried, and after the game all wires with their effects. */
  drawWires() {
    const { wires: svg, circuit, cards, puzzle: game } = this;
    if (!svg || !circuit || !cards || !game) return;
    const box = circuit.getBoundingClientRect();
    const middle = (/** @type {Element | null} */ element, /** @type {"top" | "bottom"} */ edge) => {
      const rect = /** @type {Element} */ (element).getBoundingClientRect();
      return [rect.left + rect.width / 2 - box.left, rect[edge] - box.top];
    };
    const path = (/** @type {string} */ name) => {
      const [x0, y0] = middle(cards[0][Number(name[3])], "top");
      const [x1, y1] = middle(cards[1][Number(name[9])].querySelector(`.cd-${name[11]}`), "bottom");
      const bend = (y0 - y1) / 2;
      return { d: `M${x0} ${y0}C${x0} ${y0 - bend},${x1} ${y1 + bend},${x1} ${y1}`, at: [(x0 + x1) / 2, (y0 + y1) / 2] };
    };
    const all = Array.from({ length: 48 }, (_, i) => wireName(i));
    const effects = game.planted.sets.slice(0, 49).map(({ lead }) => game.planted.sets[0].lead - lead);
    const drawn = all.flatMap((name, i) => {
      const kind = game.tried.get(name);
      const chosen = name === this.wire;
      const isCut = game.cuts.includes(name);
      const mine = Number(name[3]) === this.picked?.writer;
      if (!kind && !mine && !game.over) return [];
      const wide = game.over ? Math.max(0.7, Math.min(11, 2 * Math.abs(effects[i + 1]))) : chosen ? 3 : kind ? 2.5 : 1;
      const { d } = path(name);
      return [s("path", { d, class: `cd-line cd-${kind ?? "new"}${chosen ? " cd-picked" : ""}${isCut ? " cd-isout" : ""}`, "stroke-width": wide.toFixed(1), "data-wire": name })];
    });
    const signs = all.flatMap((name) => {
      const kind = game.tried.get(name);
      const { at: [x, y] } = path(name);
      const sign = name === this.wire && !game.cuts.includes(name) && !game.over ? "✂" : kind && SIGNS[kind][0];
      return sign ? [s("g", { class: `cd-sign cd-${kind ?? "new"}`, transform: `translate(${x} ${y})` }, s("circle", { r: 10 }), s("text", { y: 4.5, "text-anchor": "middle" }, sign))] : [];
    });
    svg.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    svg.replaceChildren(...drawn, ...signs);
  }

  drawEnd() {
    const { end, game } = this;
    if (!end) return;
    end.hidden = !game.over;
    if (!game.over || end.childElementCount) return;
    const days = Object.values(stored()).filter((one) => one?.over);
    const text = /** @type {HTMLTextAreaElement} */ (h("textarea", { readonly: true, rows: 4, "aria-label": "Your result as text", focus: () => text.select() }));
    text.value = this.result();
    const sets = game.answers.slice(0, 6).map((set) => h("li", {}, set.map(wire).join(" and ")));
    const [year, month, day] = game.day.split("-").map(Number);
    const python = ["from datetime import date", "import torch", "import circuitkit as ck", "from circuitkit_book.planted import circuit_of_the_day", "", `day = circuit_of_the_day(date(${year}, ${month}, ${day}))`, "print(day.kind, [sorted(answer) for answer in day.answers()])", `run = ck.run(day.model(), torch.tensor([day.tokens]), without=${JSON.stringify(game.answers[0] ?? [])})`, "print(run.logits[0, -1].softmax(-1))"];
    const lab = h("div");
    const parts = [
      h("h3", {}, game.won ? "Found" : "What it was"),
      h("p", { class: "cd-verdict" }, this.verdict(), days.length > 1 && ` You have won ${days.filter((one) => one.won).length} of ${days.length} days.`),
      picture(game.planted),
      h("p", {}, explained(game.planted)),
      !sets.length && h("p", {}, "The page has tried all 18,472 sets of up to three cuts, and none of them is enough."),
      sets.length > 0 && h("div", {}, h("p", {}, "The page has tried all 18,472 sets of up to three cuts. These are enough:"), h("ul", {}, sets), game.answers.length > sets.length && h("p", {}, `and ${game.answers.length - sets.length} more.`)),
      h("p", {}, "Above, every wire now has the width of its effect, and cuts are free: try what you like."),
      h("div", { class: "cd-share" }, text, h("button", { type: "button", click: () => this.copy() }, "Copy the result")),
      h("p", {}, h("button", { type: "button", click: () => this.openLab(lab) }, "Open this model in the lab"), " There you can switch off heads, write other texts, and see what each head contributes."),
      lab,
      h("details", {}, h("summary", {}, "The same model in Python"), h("pre", { tabindex: 0, role: "region", "aria-label": "Python" }, h("code", {}, python.join("\n")))),
    ];
    end.append(...parts.filter((part) => part instanceof Node));
  }
}

/** A token; the first one is a dot. @param {number} token */
function written(token) {
  const word = wordOf(token);
  return word === "start" ? h("span", {}, h("span", { "aria-hidden": "true" }, "•"), h("span", { class: "cd-hidden" }, word)) : word;
}

/** One square of the result. @param {import("./puzzle.js").Square | undefined} kind */
function square(kind) {
  const [sign, , words] = kind ? SIGNS[kind] : ["", "", "not used"];
  return h("li", { class: `cd-square cd-${kind ?? "open"}` }, h("span", { "aria-hidden": "true" }, sign), h("span", { class: "cd-hidden" }, words));
}

/** A small pattern: row by row where each position looks. @param {HTMLCanvasElement} canvas @param {Float64Array} pattern */
function paint(canvas, pattern) {
  const n = canvas.width;
  const brush = canvas.getContext("2d");
  if (!brush) return;
  const image = brush.createImageData(n, n);
  for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) image.data.set([0, 114, 178, 255 * Math.sqrt(pattern[i * n + j])], 4 * (i * n + j));
  brush.putImageData(image, 0, 0);
}

customElements.define("circuit-day", CircuitDay);
