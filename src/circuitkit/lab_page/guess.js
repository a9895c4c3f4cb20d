/**
 * A lab on the page of a chapter: what would give an answer away stays closed until the reader has made a guess.
 */
import { h } from "./dom.js";
import { byHand } from "./reasons.js";

/**
 * What a page says about its lab.
 * @typedef {object} Held
 * @property {string} [task]  what the reader is asked to do, in place of what the setting says
 * @property {string} [text]  in place of that of the preset
 * @property {string[]} panels  what is closed: "wires", or the name of a tab
 * @property {number} [cuts]  so many heads or wires, one after the other or at once, open it
 * @property {string} [key]  or an answer on the page does, which is kept under this key
 * @property {string} [until]  what opens it, in words
 */

/** How a closed panel is called. @type {Record<string, string>} */
const CALLED = { wires: "the widths of the wires and their list", parts: "the logit attribution", score: "the attention score", words: "the words of a head", neurons: "the neurons that matter most", gates: "the gates" };

export class Guess {
  /** @param {HTMLElement} element @param {() => void} opened  what to do when everything opens */
  constructor(element, opened) {
    this.opened = opened;
    /** @type {Held | null} */
    this.held = element.dataset.held ? JSON.parse(element.dataset.held) : null;
    /** @type {Set<string>} */
    this.tried = new Set();
    /** @type {Set<string> | undefined} what is cut at the start */
    this.first = undefined;
    this.closed = false;
    if (!this.held?.panels.length) return;
    const kept = window.circuitKept;
    this.mine = `circuitkit:lab:${kept.page}:${element.dataset.preset}`;
    const keys = [this.mine, kept.ALL, ...(this.held.key ? [this.held.key] : [])];
    this.closed = keys.every((key) => kept.read(key) === null);
    addEventListener("circuitkept", (event) => {
      const { detail } = /** @type {CustomEvent<string>} */ (event);
      if (keys.includes(detail) && kept.read(detail) !== null) this.open();
    });
  }

  /** Whether a panel is closed. @param {string} panel */
  holds(panel) {
    return this.closed && (this.held?.panels.includes(panel) ?? false);
  }

  /** What is cut now, and once was, may be guess enough. @param {string[]} cuts */
  see(cuts) {
    this.first ??= new Set(cuts); // a setting may begin with cuts
    for (const cut of cuts) if (!this.first.has(cut)) this.tried.add(cut);
    if (this.closed && this.held?.cuts && this.tried.size >= this.held.cuts) this.make();
  }

  make() {
    window.circuitKept.write(/** @type {string} */ (this.mine), "yes");
  }

  open() {
    if (!this.closed) return;
    this.closed = false;
    this.opened();
  }

  /** What the reader is asked to do, and what opens the rest. */
  task() {
    return this.held?.task ? [h("b", {}, byHand(this.held.task)), ...this.waits()] : [];
  }

  /** What opens the rest, as long as it is closed. */
  waits() {
    const { held } = this;
    if (!held || !this.closed) return [];
    const names = held.panels.map((panel) => CALLED[panel]).join(" and ");
    const many = held.panels.length > 1 || /^(wires|neurons|gates)$/.test(held.panels[0]);
    return [` ${names[0]?.toUpperCase()}${names.slice(1)} ${many ? "open" : "opens"} ${held.until}. `, h("button", { type: "button", class: "cl-button", click: () => this.make() }, "Open now")];
  }

  /** In the place of what is closed. @param {string} begin */
  note(begin) {
    return h("p", {}, `${begin} ${this.held?.until}.`);
  }
}
