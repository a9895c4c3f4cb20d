/**
 * The rules of the circuit of the day: what a cut paints, and when the game is over.
 */
import { answersOf, lookAt, plantedModel } from "./planted.js";

/** @typedef {"nothing" | "part" | "wire" | "wrong" | "none"} Square  `none` is the right answer that there is no circuit */
/**
 * @typedef {object} Look  the model with some wires cut
 * @property {Float64Array[][]} patterns  of each layer and head, [n, n]
 * @property {number[]} chances  the probability of each token at the end
 * @property {number} lead  the logit of the answer minus the largest other logit
 * @property {number} other  the best token but the answer
 */

// Up to six wires can be suspected after a look at the patterns (two heads that read, three that could write), and one square is for
// the answer that there is no circuit.
export const SQUARES = 7;
export const HELD = 3; // so many wires can be cut at once
const PART = 0.1; // of the lead of the intact model

export class Puzzle {
  /** @param {string} day  such as 2026-11-28 */
  constructor(day) {
    this.day = day;
    this.planted = plantedModel(day);
    this.answers = answersOf(this.planted);
    /** @type {string[]} */
    this.cuts = [];
    /** @type {Square[]} */
    this.squares = [];
    /** @type {Map<string, Square>} */
    this.tried = new Map();
    /** @type {string[]} */
    this.moves = [];
    /** @type {Map<string, Look>} */
    this.seen = new Map();
  }

  get won() {
    return this.squares.includes("wire") || this.squares.includes("none");
  }

  get over() {
    return this.won || this.squares.length >= SQUARES;
  }

  /** @param {string[]} [cuts] @returns {Look} */
  look(cuts = this.cuts) {
    const key = [...cuts].sort().join();
    let found = this.seen.get(key);
    if (!found) {
      const { answer } = this.planted;
      const { patterns, logits } = lookAt(this.planted, cuts);
      const row = [...logits];
      const most = Math.max(...row);
      const powers = row.map((value) => Math.exp(value - most));
      const sum = powers.reduce((all, value) => all + value, 0);
      const other = row.reduce((best, value, i) => (i !== answer && (best < 0 || value > row[best]) ? i : best), -1);
      found = { patterns, chances: powers.map((value) => value / sum), lead: row[answer] - row[other], other };
      this.seen.set(key, found);
    }
    return found;
  }

  /**
   * Cut a wire in addition. The square compares the model with and without this cut.
   * @param {string} name @returns {string} the wire that is connected again because only three can be cut, or ""
   */
  cut(name) {
    const dropped = this.cuts.length === HELD ? this.cuts[0] : "";
    const kept = this.cuts.slice(dropped ? 1 : 0);
    const before = this.look(kept).lead;
    this.cuts = [...kept, name];
    if (this.over) return dropped;
    const after = this.look().lead;
    /** @type {Square} */
    const square = after <= 0 ? "wire" : before - after >= PART * this.look([]).lead ? "part" : "nothing";
    this.squares.push(square);
    if (this.tried.get(name) !== "part" || square === "wire") this.tried.set(name, square);
    this.moves.push(name);
    return dropped;
  }

  /** Connect a wire again, which costs nothing. @param {string} name */
  join(name) {
    this.cuts = this.cuts.filter((one) => one !== name);
    if (!this.over) this.moves.push(`+${name}`);
  }

  /** Answer that there is no circuit. */
  claim() {
    if (this.over) return;
    this.squares.push(this.answers.length ? "wrong" : "none");
    this.moves.push("no circuit");
  }

  /** Play moves that were stored. @param {string[]} moves */
  replay(moves) {
    for (const move of moves) {
      if (move === "no circuit") this.claim();
      else if (/^\+?L0H[0-3]->L1H[0-3]\.[QKV]$/.test(move)) move[0] === "+" ? this.join(move.slice(1)) : this.cut(move);
    }
  }
}
