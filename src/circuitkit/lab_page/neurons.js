/**
 * The panel of the neurons: which of them matter most for the chosen token, and the wires of one of them.
 */
import { h, signed, thousands } from "./dom.js";
import { tone } from "./draw.js";
import { wiresOf } from "./names.js";
import { word } from "./panels.js";
import { byHand } from "./reasons.js";

/** @typedef {import("./interface.js").Reply} Reply */
/** @typedef {import("./session.js").Session} Session */

const SHOWN = 10;
/** @type {Record<number, string>} */
const SO_MANY = { 1: "one", 5: "five" };

/** A number with two digits behind the point. @param {number} value */
function two(value) {
  return value.toFixed(2).replace("-", "−");
}

/**
 * @param {Session} session @param {Reply} reply @param {(name: string, label: string, kind: string) => HTMLElement} wire  a button that cuts it
 * @returns {{made: HTMLElement[], fill: (asked: number, going: () => boolean, shown: () => void) => Promise<void>}} the panel, and what fills it bit by bit
 */
export function neuronsPanel(session, reply, wire) {
  const { nLayers, nNeurons = 0, asHeads = 0, at, tokens, answer } = reply;
  const { cuts } = session.state;
  const rows = h("tbody");
  const said = h("p", { class: "cl-number", role: "status" });
  const near = h("div", { class: "cl-neuron" });
  const query = /** @type {HTMLInputElement} */ (
    h("input", { type: "text", class: "cl-query", "aria-label": "Find a neuron by its name", placeholder: "L0N12", "data-key": "neuron query", spellcheck: "false", autocomplete: "off", autocapitalize: "off", value: session.query, input: () => list() })
  );
  /** @type {Map<string, {row: HTMLElement, show: (fired: number) => void}>} */
  const drawn = new Map();
  /** The row of a neuron; `show` writes its numbers, and whether it is chosen, into the same elements. */
  const draw = (/** @type {string} */ name) => {
    const off = cuts.includes(name);
    const effect = h("span");
    const cell = h("td", {}, effect);
    const activation = h("td");
    const open = h("button", { type: "button", class: "cl-button", title: "Show the wires of this neuron", "data-key": `neuron ${name}`, click: () => choose(name) }, name);
    const row = h(
      "tr",
      {},
      h("th", { scope: "row" }, open),
      activation,
      cell,
      h("td", {}, h("button", { type: "button", class: `cl-switch${off ? " cl-gone" : ""}`, role: "switch", "aria-checked": String(!off), "aria-label": name, "data-key": `switch ${name}`, click: () => session.toggle(name) }, h("span", { class: "cl-knob", "aria-hidden": "true" }), h("span", { class: "cl-inout", "aria-hidden": "true" }, off ? "off" : "on"))),
    );
    const show = (/** @type {number} */ fired) => {
      const found = session.neurons.found[name];
      const chosen = name === session.neuron;
      activation.textContent = two(fired);
      effect.textContent = found === undefined ? "…" : two(found);
      cell.className = `cl-cell cl-${(found ?? 0) < 0 ? "down" : "up"}`;
      cell.style.setProperty("--share", String(Math.min(0.8, Math.abs(found ?? 0) / 3)));
      row.className = chosen ? "cl-followed" : "";
      open.setAttribute("aria-pressed", String(chosen));
    };
    drawn.set(name, { row, show });
    return row;
  };
  /** @type {{wanted: string, listed: number[]}} */
  let last = { wanted: "", listed: [] };
  const list = () => {
    const { names, fired, found } = session.neurons;
    session.query = query.value;
    const wanted = query.value.trim().toLowerCase();
    const size = (/** @type {string} */ name) => Math.abs(found[name] ?? 0);
    const order = names.map((_, i) => i).filter((i) => names[i].toLowerCase().includes(wanted));
    order.sort((a, b) => Number(cuts.includes(names[b])) - Number(cuts.includes(names[a])) || Number(names[b].toLowerCase() === wanted) - Number(names[a].toLowerCase() === wanted) || size(names[b]) - size(names[a]));
    // Rows do not move under the pointer or the focus while more neurons are measured: a key that is held down keeps its button.
    const stay = last.wanted === wanted && last.listed.length > 0 && rows.matches(":hover, :focus-within");
    if (!stay) {
      last = { wanted, listed: order.slice(0, Math.max(SHOWN, cuts.length)) };
      rows.replaceChildren(...last.listed.map((i) => drawn.get(names[i])?.row ?? draw(names[i])));
    }
    for (const i of last.listed) drawn.get(names[i])?.show(fired[i]);
    const [count, all] = [Object.keys(found).length, nLayers * nNeurons];
    const listed = order.length > SHOWN ? `The ${SHOWN} strongest of ${wanted ? `${thousands(order.length)} that were found` : thousands(all)} are listed.` : order.length ? "" : "No neuron has this name.";
    said.textContent = `${count < all ? `${thousands(count)} of ${thousands(all)} neurons are measured. ` : ""}${listed}`;
  };
  const choose = (/** @type {string} */ name) => {
    session.neuron = name;
    list();
    return closer();
  };
  /** The wires of the chosen neuron, and its heads in a converted copy. */
  const closer = async () => {
    const name = session.neuron;
    const { asked } = session;
    if (!session.neurons.names.includes(name)) return near.replaceChildren();
    const { into, out } = wiresOf(name, reply);
    const setting = { ...session.setting(), at, answer: answer.id };
    const { found } = await session.engine.measure({ ...setting, names: [...into, ...out], from: 0, time: 2000 });
    const heads = asHeads ? await session.engine.asHeads({ ...setting, neuron: name, of: "two-layer-mlp" }) : null;
    if (asked !== session.asked || name !== session.neuron) return;
    Object.assign(session.wires, found);
    const some = (/** @type {string[]} */ names) => [...names].sort((a, b) => Math.abs(found[b] ?? 0) - Math.abs(found[a] ?? 0)).slice(0, 8);
    const buttons = (/** @type {string} */ title, /** @type {string[]} */ names) => names.length > 0 && h("section", {}, h("p", { class: "cl-heading" }, title), h("div", { class: "cl-strong" }, some(names).map((one) => wire(one, one, "neuron"))));
    const focused = document.activeElement instanceof HTMLElement && near.contains(document.activeElement) ? document.activeElement.dataset.key : "";
    near.replaceChildren(
      ...(heads ? [asTable(name, heads, asHeads, tokens[at].text)] : []),
      h("div", { class: "cl-words" }, buttons(`Wires into ${name}`, into), buttons(`Wires from ${name}`, out)),
    );
    if (focused) /** @type {HTMLElement | null} */ (near.querySelector(`[data-key="${focused}"]`))?.focus({ preventScroll: true });
  };
  const made = [
    h("p", {}, "The effect of a neuron is how far the logit of ", word(answer.text), " falls when this neuron alone is switched off at all tokens, in the model as it is now. Its activation is that at ", word(tokens[at].text), byHand(". Click a name to see the wires of the neuron.")),
    h("div", { class: "cl-finder" }, query, said),
    h("table", { class: "cl-score cl-neurons" }, h("thead", {}, h("tr", {}, ["neuron", "activation", "effect", ""].map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {}))))), rows),
    near,
  ];
  const fill = async (/** @type {number} */ asked, /** @type {() => boolean} */ going, /** @type {() => void} */ shown) => {
    let closed = true;
    await session.measureNeurons(asked, () => {
      if (!going()) return false;
      list();
      shown();
      if (closed) closer().then(shown, () => {});
      closed = false;
      return true;
    });
    if (going()) list();
  };
  return { made, fill };
}

/**
 * A neuron as heads that choose between their own token and the bias token.
 * @param {string} name @param {import("./interface.js").AsHeads} found @param {number} count @param {string} token
 */
function asTable(name, { read, heads, difference }, count, token) {
  const whole = heads.reduce((sum, { weight, value }) => sum + weight * value, 0);
  const small = difference < 1e-4 ? `less than ${difference < 5e-5 ? "0.0001" : "0.001"}` : difference.toPrecision(1);
  const cells = (/** @type {(number | string)[]} */ values) => values.map((value) => h("td", {}, typeof value === "number" ? two(value) : value));
  const names = heads.map((_, i) => (count > 1 ? `${name}.${i}` : name));
  return h(
    "div",
    {},
    h("p", {}, `In this copy of the model, each neuron is ${SO_MANY[count] ?? count} attention ${count > 1 ? "heads" : "head"}, and there are no MLPs. On this text its logits are those of the model with MLPs, with a difference of ${small} at most. A head of a neuron attends to two tokens, its own and the bias token, where its value is 0. At `, word(token), `, ${name} reads ${two(read)}.`),
    h(
      "table",
      { class: "cl-score cl-neurons" },
      h("caption", {}, `What the heads of ${name} gather at this token`),
      h("thead", {}, h("tr", {}, ["head", "attends to its own token", "to the bias token", "value", "gathers"].map((column) => h("th", { scope: "col" }, column)))),
      h(
        "tbody",
        {},
        heads.map(({ weight, value }, i) => h("tr", {}, h("th", { scope: "row" }, names[i]), cells([weight, 1 - weight, value, weight * value]))),
        count > 1 && h("tr", { class: "cl-total" }, h("th", { scope: "row" }, "sum"), cells(["", "", "", whole])),
      ),
    ),
  );
}

/**
 * The panel of a gated block: each head's gate from the chosen token to another one, and what forcing it would change.
 * @param {Session} session @param {Reply} reply @param {HTMLElement} choose  the choice of the other token
 * @param {import("./interface.js").Gate[]} gates @param {Record<string, number>} found  effects of forcing
 */
export function gatesPanel(session, reply, choose, gates, found) {
  const { cuts } = session.state;
  const change = (/** @type {string} */ name) => {
    const value = -(found[name] ?? 0);
    const made = h("td", { class: `cl-cell cl-${tone(value)}` }, h("span", {}, cuts.includes(name) ? "is forced" : signed(value)));
    made.style.setProperty("--share", String(cuts.includes(name) ? 0 : Math.min(0.8, Math.abs(value) / 3)));
    return made;
  };
  const choice = (/** @type {string} */ head) => {
    const now = ["open", "shut"].find((how) => cuts.includes(`${head} ${how}`)) ?? "";
    const made = /** @type {HTMLSelectElement} */ (
      h("select", { "aria-label": `Gate of ${head}`, "data-key": `gate ${head}`, change: () => session.gate(head, made.value) }, [["", "as trained"], ["open", "forced open"], ["shut", "forced shut"]].map(([value, name]) => h("option", { value }, name)))
    );
    made.value = now;
    return made;
  };
  const row = (/** @type {import("./interface.js").Gate} */ { name, gate, attention }) => {
    const forced = cuts.includes(`${name} open`) ? 1 : cuts.includes(`${name} shut`) ? 0 : gate;
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, choice(name)), [gate, attention, attention * forced].map((value) => h("td", {}, two(value))), change(`${name} open`), change(`${name} shut`));
  };
  const columns = ["head", "the gate is", "gate", "attention", "product", "if forced open", "if forced shut"];
  return [
    h("p", {}, "A gate multiplies the attention of a head, for each pair of tokens (chapter 5). The table shows both from ", word(reply.tokens[reply.at].text), " to ", choose, ". The last columns show how the logit of ", word(reply.answer.text), " changes when this gate is forced open or shut for all pairs, in the model as it is now."),
    h(
      "div",
      { class: "cl-wide", tabindex: "0", role: "group", "aria-label": "The gates, a table that scrolls" },
      h("table", { class: "cl-score cl-neurons" }, h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, gates.map(row))),
    ),
  ];
}
