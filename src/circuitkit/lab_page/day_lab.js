/**
 * The model of the day in the lab: the lab's own session, view and engine.
 */
import { h } from "./dom.js";
import { wordOf } from "./planted.js";

/** @typedef {typeof import("./view.js") & typeof import("./session.js") & typeof import("./asking.js")} Parts */

const FILE = "two-layer"; // the lab knows the shape of a model by its name

/**
 * @param {Parts} parts @param {import("./puzzle.js").Puzzle} puzzle @param {string} address  of the day
 */
export async function openPlanted({ View, Session, WorkerEngine, rest }, { planted }, address) {
  const { model, tokens, answer, roles } = planted;
  const head = Math.max(0, roles[1].findIndex(({ does }) => ["read", "offset", "stripe"].includes(does)));
  const vocab = Array.from({ length: model.dVocab }, (_, token) => wordOf(token));
  const text = { vocab, merges: [], start: [tokens[0]], specials: {} };
  const card = { dHead: model.dHead, tokens: vocab, rows: [tokens], bpe: text };
  const engine = new WorkerEngine(async (/** @type {string} */ what) => (what === "text" ? { data: JSON.stringify({ ...text, rows: [tokens] }) } : { name: FILE, model, card }));
  const state = { model: FILE, step: 0, text: tokens.slice(1).map(wordOf).join(""), head: `L1H${head}`, tab: "parts", cuts: [], fill: /** @type {"zero"} */ ("zero"), at: -1, answer };
  const session = new (class extends Session {
    preset() {
      return undefined;
    }
  })(engine, state, { [FILE]: [0] });
  const host = h("circuit-lab", { class: "cl-live", "data-given": "" });
  const view = new (class extends View {
    async copyLink() {
      await this.copy(address, "The link to this day is copied");
    }

    /** The panel with Python is for models that the library ships. @param {KeyboardEvent} event */
    turn(event) {
      const last = this.frame.tabs.length - 2;
      const at = this.frame.tabs.findIndex((tab) => tab.tabIndex === 0);
      if (event.key === (at ? "ArrowRight" : "ArrowLeft") && (at === 0 || at === last)) return;
      super.turn(event);
    }
  })(host, session);
  const { presetRow, model: choice, training, tabs, paper, link, hint, root } = view.frame;
  for (const one of [presetRow, choice.previousElementSibling, choice, training, tabs[tabs.length - 1], paper, link, hint]) one?.remove();
  await engine.bring(session.file(state));
  host.append(root);
  await rest();
  await session.update("Ready");
  return { host, end: async () => (await engine.worker)?.terminate() };
}
