/**
 * Small models with a planted circuit, each made from a text. `circuitkit_book/planted.py` makes the same models and says what is
 * planted: both draw the same random numbers in the same order, and use sums, products, divisions and square roots only.
 */
import { Stream } from "./random.js";

/** @typedef {"token" | "note" | "other" | "out"} Space  a part of the content of the stream */
/**
 * @typedef {object} Role  what a head compares and copies
 * @property {string} does  "write", "read", "decoy", "offset", "stripe" or "fill"
 * @property {Space[]} [match]  where equal tokens score MATCH: a part of queries and a part of keys
 * @property {number[]} [back]  so many positions, and the score
 * @property {number[][]} [looks]  tokens to which it attends from everywhere, and their scores
 * @property {boolean} [notItself]
 * @property {Space} [reads]
 * @property {[Space, number][]} [writes]
 * @property {number} [noise]  of values and outputs
 */
/**
 * @typedef {object} Planted  a model and its question
 * @property {string} kind  "simple", "redundant" or "empty"
 * @property {string} story  "follow", "before" or "asked"
 * @property {string} reason  why the answer comes without a wire, if the kind is "empty"
 * @property {number[]} tokens
 * @property {number} answer
 * @property {number} source  the position of the answer
 * @property {Role[][]} roles  of each layer and head
 * @property {Model} model  as `engine.js` takes it
 * @property {Prepared} prepared
 * @property {{wires: number[], lead: number}[]} sets  the lead of the answer without each set of up to three wires
 */
/** @typedef {import("./weights.js").Model} Model */

const LETTERS = 12;
const [START, ASK] = [12, 13];
const WORDS = 14;
const N = 12;
const HEADS = 4;
const D_HEAD = 28;
const SPACES = { token: 0, note: 14, other: 28, out: 42 };
const CONTENT = 56;
const [BACK, MATCH, SINK, GAIN] = [5.5, 8, 3.5, 6.5];
const [NOISE, FILLER_NOISE, LEAK] = [0.02, 0.1, 0.25];
const [MARGIN, CLEAR] = [0.3, 2];
const SIDES = ["Q", "K", "V"];
const WIDE = HEADS * D_HEAD;
const D_MODEL = CONTENT + N;

/** A token by its number. @param {number} token */
export function wordOf(token) {
  return token === START ? "start" : token === ASK ? "?" : String.fromCharCode(65 + token);
}

/** The model of a text, for example of a date. @param {string} text @returns {Planted} */
export function plantedModel(text) {
  const stream = new Stream(text);
  for (;;) {
    const planted = draw(stream);
    if (isSound(planted)) return planted;
  }
}

/** Whether cuts do to the answer what the kind of the model says, with a margin. @param {Planted} planted */
function isSound({ kind, sets }) {
  const least = (/** @type {number} */ size) => sets.reduce((found, { wires, lead }) => (wires.length <= size ? Math.min(found, lead) : found), Infinity);
  if (sets[0].lead < CLEAR) return false;
  if (kind === "simple") return least(1) < -MARGIN;
  if (kind === "redundant") return least(1) > MARGIN && least(2) < -MARGIN;
  return least(3) > MARGIN;
}

/** The wires from a head of layer 0 to an input of a head of layer 1, by number. @param {number} wire */
export function wireName(wire) {
  return `L0H${Math.floor(wire / 12)}->L1H${Math.floor(wire / 3) % HEADS}.${SIDES[wire % 3]}`;
}

/** The smallest sets of cuts that take the answer from the top. @param {Planted} planted */
export function answersOf({ sets }) {
  /** @type {number[][]} */
  const found = [];
  for (const { wires, lead } of sets) if (lead <= 0 && !found.some((smaller) => smaller.every((wire) => wires.includes(wire)))) found.push(wires);
  return found.map((wires) => wires.map(wireName));
}

// --- what is planted ---------------------------------------------------------------------------------------------------

/** @param {Stream} stream @returns {Planted} */
function draw(stream) {
  const kind = ["simple", "simple", "simple", "redundant", "empty"][stream.below(5)];
  const story = ["follow", "before", "asked"][stream.below(3)];
  const { tokens, answer, source } = drawText(story, stream);
  const wide = stream.below(2); // three heads that could write and two that could read, or two and three
  const layers = [drawWriters(kind, wide, stream), drawReaders(kind, story, wide, stream)];
  const reason = kind === "empty" ? ["bigram", "offset", "stripe"][stream.below(3)] : "";
  if (reason === "offset") layers[stream.below(2)].push({ does: reason, back: [N - 1 - source, BACK], writes: [["out", GAIN]] });
  if (reason === "stripe") layers[stream.below(2)].push({ does: reason, looks: [[answer, MATCH], [START, SINK]], writes: [["out", GAIN]] });
  const roles = layers.map((some) => {
    while (some.length < HEADS) some.push(drawFiller(stream));
    return stream.order(HEADS).map((i) => some[i]);
  });
  const W_U = new Float64Array(CONTENT * WORDS);
  for (let i = 0; i < WORDS; i++) W_U[(SPACES.out + i) * WORDS + i] = 1;
  for (let token = 0; token < WORDS; token++) {
    // Without its circuit, the model predicts another token.
    let [other, logit] = [stream.below(LETTERS), 1.8 + 0.8 * stream.next()];
    if (other === answer) other = (answer + 1) % LETTERS;
    if (reason === "bigram" && token === tokens[N - 1]) [other, logit] = [answer, GAIN];
    W_U[token * WORDS + other] = logit;
  }
  const model = weights(roles, W_U, stream);
  const prepared = prepare(model, tokens);
  return { kind, story, reason, tokens, answer, source, roles, model, prepared, sets: leads(prepared, answer) };
}

/** Two letters are there twice, one of them at the end. @param {string} story @param {Stream} stream */
function drawText(story, stream) {
  const [asked, answer, another, ...others] = stream.order(LETTERS);
  const first = 3 + stream.below(4);
  const source = story === "before" ? first - 1 : first + 1;
  const tokens = [START, ...Array(N - 1).fill(-1)];
  [tokens[first], tokens[source], tokens[N - 1]] = [asked, answer, asked];
  if (story === "asked") [tokens[N - 2], tokens[N - 1]] = [asked, ASK];
  const free = tokens.flatMap((token, i) => (token < 0 ? [i] : []));
  const i = stream.below(free.length - 2);
  const j = i + 2 + stream.below(free.length - i - 2);
  tokens[free[i]] = tokens[free[j]] = another;
  return { tokens: tokens.map((token) => (token < 0 ? /** @type {number} */ (others.shift()) : token)), answer, source };
}

/** Heads that look one token back. @param {string} kind @param {number} wide @param {Stream} stream @returns {Role[]} */
function drawWriters(kind, wide, stream) {
  const twins = kind === "redundant" && wide === 1;
  const leak = kind === "simple" ? LEAK * stream.below(2) : 0;
  const weak = 0.7 + 0.3 * stream.next();
  const back = [1, BACK];
  return [
    { does: "write", back, writes: [["note", 1]] },
    { does: twins ? "write" : "decoy", back, writes: twins ? [["note", weak]] : [["other", 1], ["note", leak]] },
    ...(wide ? [{ does: "decoy", back, writes: /** @type {[Space, number][]} */ ([["other", 1]]) }] : []),
  ];
}

/** Heads that look at the answer, or at the token after it. @param {string} kind @param {string} story @param {number} wide @param {Stream} stream */
function drawReaders(kind, story, wide, stream) {
  const count = kind === "simple" ? 1 : kind === "redundant" ? 2 - wide : 0;
  const halved = kind === "redundant" && (story === "before" || !wide);
  return Array.from({ length: 3 - wide }, (_, i) => {
    const real = i < count;
    /** @type {Space} */
    const note = real || stream.below(2) ? "note" : "other";
    /** @type {Role} */
    const role = {
      does: real ? "read" : "decoy",
      match: story === "follow" ? ["token", note] : story === "before" ? ["token", "token"] : [note, note],
      looks: [[START, SINK]],
      notItself: story !== "follow",
      reads: story === "before" ? note : "token",
      writes: [real ? ["out", halved ? GAIN / 2 : GAIN] : ["other", 1]],
    };
    return role;
  });
}

/** A head that looks at the first token, at all, at itself or two back, and writes noise. @param {Stream} stream @returns {Role} */
function drawFiller(stream) {
  const which = stream.below(4);
  if (which === 0) return { does: "fill", looks: [[START, SINK]], noise: FILLER_NOISE };
  return { does: "fill", back: [[0, 0.4], [0, BACK], [2, BACK]][which - 1], noise: FILLER_NOISE };
}

// --- weights -----------------------------------------------------------------------------------------------------------

/**
 * Each head by its role, with noise, and a content of the stream that is turned at random.
 * @param {Role[][]} roles @param {Float64Array} W_U @param {Stream} stream @returns {Model}
 */
function weights(roles, W_U, stream) {
  const layers = roles.map((some) => {
    const layer = { W_Q: new Float64Array(D_MODEL * WIDE), W_K: new Float64Array(D_MODEL * WIDE), W_V: new Float64Array(CONTENT * WIDE), W_O: new Float64Array(WIDE * CONTENT) };
    some.forEach((role, head) => {
      const from = head * D_HEAD;
      plant(role, layer, from);
      const [score, copy] = [NOISE * MATCH * Math.sqrt(D_HEAD), role.noise ?? NOISE];
      for (let i = 0; i < D_MODEL; i++) for (let c = 0; c < D_HEAD; c++) layer.W_Q[i * WIDE + from + c] += score * (2 * stream.next() - 1);
      for (let i = 0; i < D_MODEL; i++) for (let c = 0; c < D_HEAD; c++) layer.W_K[i * WIDE + from + c] += NOISE * (2 * stream.next() - 1);
      for (let i = 0; i < CONTENT; i++) for (let c = 0; c < D_HEAD; c++) layer.W_V[i * WIDE + from + c] += copy * (2 * stream.next() - 1);
      for (let i = 0; i < D_HEAD * CONTENT; i++) layer.W_O[from * CONTENT + i] += copy * (2 * stream.next() - 1);
    });
    return layer;
  });
  const W_E = new Float64Array(WORDS * CONTENT);
  const W_pos = new Float64Array(N * N);
  for (let i = 0; i < WORDS; i++) W_E[i * CONTENT + i] = 1;
  for (let i = 0; i < N; i++) W_pos[i * N + i] = 1;
  for (let i = 0; i < 3; i++) {
    const mirror = Array.from({ length: CONTENT }, () => stream.below(7) - 3);
    for (const { W_Q, W_K, W_V, W_O } of layers) {
      for (const W of [W_Q, W_K, W_V]) reflect(W, mirror, WIDE, 1, WIDE);
      reflect(W_O, mirror, 1, CONTENT, WIDE);
    }
    reflect(W_E, mirror, 1, CONTENT, WORDS);
    reflect(W_U, mirror, WORDS, 1, WORDS);
  }
  const meanU = Float64Array.from({ length: CONTENT }, (_, i) => W_U.subarray(i * WORDS, (i + 1) * WORDS).reduce((sum, value) => sum + value, 0) / WORDS);
  return /** @type {any} */ ({ nLayers: 2, nHeads: HEADS, dHead: D_HEAD, dModel: D_MODEL, dContent: CONTENT, dVocab: WORDS, nCtx: N, W_E, W_pos, W_U, meanU, layers });
}

/**
 * Reflect vectors of the content: one begins every `next` entries, and its entries are `step` apart.
 * @param {Float64Array} W @param {number[]} mirror @param {number} step @param {number} next @param {number} count
 */
function reflect(W, mirror, step, next, count) {
  const length = mirror.reduce((sum, x) => sum + x * x, 0);
  for (let j = 0; j < count; j++) {
    let along = 0;
    for (let i = 0; i < CONTENT; i++) along += mirror[i] * W[j * next + i * step];
    for (let i = 0; i < CONTENT; i++) W[j * next + i * step] -= (2 / length) * mirror[i] * along;
  }
}

/**
 * Every pair of directions that a head compares has a dimension of the head for itself.
 * @param {Role} role @param {Record<"W_Q" | "W_K" | "W_V" | "W_O", Float64Array>} layer @param {number} from  its first column
 */
function plant(role, { W_Q, W_K, W_V, W_O }, from) {
  const size = Math.sqrt(D_HEAD);
  let column = from;
  if (role.match) {
    const [query, key] = role.match.map((space) => SPACES[space]);
    for (let i = 0; i < LETTERS; i++) {
      W_Q[(query + i) * WIDE + column + i] = MATCH * size;
      W_K[(key + i) * WIDE + column + i] = 1;
    }
    column += LETTERS;
  }
  if (role.notItself || role.back) {
    const [by, score] = role.back ?? [0, -2 * MATCH];
    for (let i = 0; i < N; i++) {
      W_Q[(CONTENT + i) * WIDE + column + Math.max(0, i - by)] = score * size;
      W_K[(CONTENT + i) * WIDE + column + i] = 1;
    }
    column += N;
  }
  for (const [token, score] of role.looks ?? []) {
    for (let i = 0; i < WORDS; i++) W_Q[i * WIDE + column] = score * size;
    W_K[token * WIDE + column] = 1;
    column++;
  }
  for (let i = 0; i < LETTERS; i++) {
    W_V[(SPACES[role.reads ?? "token"] + i) * WIDE + from + i] = 1;
    for (const [space, strength] of role.writes ?? []) W_O[(from + i) * CONTENT + SPACES[space] + i] = strength;
  }
}

// --- what cuts do ------------------------------------------------------------------------------------------------------

/**
 * Rows times a block of a matrix.
 * @param {ArrayLike<number>} rows  [n, deep] @param {number} deep @param {ArrayLike<number>} W @param {number} from  the first entry of the
 *   block @param {number} wide  how many entries lie between its rows @param {number} m  its columns
 */
function times(rows, deep, W, from, wide, m) {
  const n = rows.length / deep;
  const out = new Float64Array(n * m);
  for (let i = 0; i < n; i++) for (let k = 0; k < deep; k++) for (let j = 0; j < m; j++) out[i * m + j] += rows[i * deep + k] * W[from + k * wide + j];
  return out;
}

/** Where one position of a head attends. @param {Float64Array} q @param {Float64Array} k @param {number} i */
function attention(q, k, i) {
  const shares = new Float64Array(i + 1);
  for (let s = 0; s <= i; s++) {
    for (let c = 0; c < D_HEAD; c++) shares[s] += q[i * D_HEAD + c] * k[s * D_HEAD + c];
    shares[s] /= Math.sqrt(D_HEAD);
  }
  const most = Math.max(...shares);
  let sum = 0;
  for (let s = 0; s <= i; s++) sum += shares[s] = Math.exp(shares[s] - most);
  return shares.map((value) => value / sum);
}

/** All positions of a head. @param {Float64Array} q @param {Float64Array} k */
function patternOf(q, k) {
  const pattern = new Float64Array(N * N);
  for (let i = 0; i < N; i++) pattern.set(attention(q, k, i), i * N);
  return pattern;
}

/**
 * All that does not depend on cuts: the patterns of layer 0, the logits without layer 1, and what enters each head of layer 1.
 * @param {Model} model @param {number[]} tokens
 */
function prepare(model, tokens) {
  const content = Float64Array.from(tokens.flatMap((token) => [...model.W_E.subarray(token * CONTENT, (token + 1) * CONTENT)]));
  const [first, second] = model.layers;
  const sides = (/** @type {import("./weights.js").Layer} */ { W_Q, W_K, W_V }, /** @type {Float64Array} */ read, /** @type {number} */ head, withPosition = true) =>
    [W_Q, W_K, W_V].map((W, side) => {
      const out = times(read, CONTENT, W, head * D_HEAD, WIDE, D_HEAD);
      // Every position is a coordinate of its own.
      if (side < 2 && withPosition) for (let i = 0; i < N; i++) for (let c = 0; c < D_HEAD; c++) out[i * D_HEAD + c] += W[(CONTENT + i) * WIDE + head * D_HEAD + c];
      return out;
    });
  const heads = Array.from({ length: HEADS }, (_, head) => head);
  /** @type {Float64Array[]} */
  const patterns = [];
  const wrote = heads.map((head) => {
    const [q, k, v] = sides(first, content, head);
    patterns.push(patternOf(q, k));
    return times(times(patterns[head], N, v, 0, D_HEAD, D_HEAD), D_HEAD, first.W_O, head * D_HEAD * CONTENT, CONTENT, CONTENT);
  });
  for (const some of wrote) for (let i = 0; i < content.length; i++) content[i] += some[i];
  const readers = heads.map((head) => ({
    whole: sides(second, content, head),
    lost: wrote.map((some) => sides(second, some, head, false)),
    unembed: times(second.W_O.subarray(head * D_HEAD * CONTENT, (head + 1) * D_HEAD * CONTENT), CONTENT, model.W_U, 0, WORDS, WORDS),
  }));
  return { patterns, readers, base: times(content.subarray((N - 1) * CONTENT), CONTENT, model.W_U, 0, WORDS, WORDS) };
}

/** @typedef {ReturnType<typeof prepare>} Prepared */

/**
 * Queries, keys and values of a head of layer 1 without some of its inputs.
 * @param {Prepared["readers"][0]} reader @param {number[]} inputs  three times the writer, plus the side
 */
function without({ whole, lost }, inputs) {
  return whole.map((all, side) => {
    const rest = all.slice();
    for (const input of inputs) if (input % 3 === side) for (let i = 0; i < rest.length; i++) rest[i] -= lost[Math.floor(input / 3)][side][i];
    return rest;
  });
}

/** What a head of layer 1 adds to the logits at the end of the text. @param {Prepared["readers"][0]} reader @param {Float64Array[]} inputs */
function adds({ unembed }, [q, k, v]) {
  return times(times(attention(q, k, N - 1), N, v, 0, D_HEAD, D_HEAD), D_HEAD, unembed, 0, WORDS, WORDS);
}

/**
 * The patterns of all heads, by layer, and the logits at the end of the text, without some wires.
 * @param {Planted} planted @param {string[]} cuts
 */
export function lookAt({ prepared }, cuts) {
  const logits = prepared.base.slice();
  const patterns = prepared.readers.map((reader, head) => {
    const inputs = cuts.filter((name) => Number(name[9]) === head).map((name) => Number(name[3]) * 3 + SIDES.indexOf(name[11]));
    const sides = without(reader, inputs);
    adds(reader, sides).forEach((value, i) => (logits[i] += value));
    return patternOf(sides[0], sides[1]);
  });
  return { patterns: [prepared.patterns, patterns], logits };
}

/** All sets of up to `most` of 0 to n - 1, small ones first. @param {number} n @param {number} most */
function subsets(n, most) {
  /** @type {number[][]} */
  let last = [[]];
  const all = [...last];
  for (let size = 1; size <= most; size++) {
    last = last.flatMap((some) => Array.from({ length: n - 1 - (some.at(-1) ?? -1) }, (_, i) => [...some, (some.at(-1) ?? -1) + 1 + i]));
    all.push(...last);
  }
  return all;
}

/** @type {{wires: number[], keys: number[]}[] | undefined} */
let cutSets;

/** Which inputs of each reader a set of wires cuts, as numbers with the digits 0 to 12. @param {number[]} wires */
function keysOf(wires) {
  const keys = [0, 0, 0, 0];
  for (const wire of wires) {
    const reader = Math.floor(wire / 3) % HEADS;
    keys[reader] = keys[reader] * 13 + Math.floor(wire / 12) * 3 + (wire % 3) + 1;
  }
  return keys;
}

/**
 * The lead of the answer over the next best token at the end of the text, without each set of up to three wires. A reader depends on
 * its own wires only, and the logits are a sum over readers, so all 18,473 sets take a moment.
 * @param {Prepared} prepared @param {number} answer
 */
function leads({ readers, base }, answer) {
  const small = subsets(HEADS * 3, 3).map((inputs) => ({ inputs, key: inputs.reduce((key, input) => key * 13 + input + 1, 0) }));
  const tables = readers.map((reader) => new Map(small.map(({ inputs, key }) => [key, adds(reader, without(reader, inputs))])));
  cutSets ??= subsets(HEADS * HEADS * 3, 3).map((wires) => ({ wires, keys: keysOf(wires) }));
  return cutSets.map(({ wires, keys }) => {
    const [first, second, third, fourth] = tables.map((table, reader) => /** @type {Float64Array} */ (table.get(keys[reader])));
    const logit = (/** @type {number} */ i) => base[i] + first[i] + second[i] + third[i] + fourth[i];
    let most = -Infinity;
    for (let i = 0; i < WORDS; i++) if (i !== answer) most = Math.max(most, logit(i));
    return { wires, lead: logit(answer) - most };
  });
}
