// How often five ways to play win the circuit of the day: node studies/circuit_of_the_day.mjs 2026-11-28 365
// The same for models made from other texts, one in each line of a file: node studies/circuit_of_the_day.mjs texts.txt
// Every day is played by the page's own rules (`puzzle.js`). The policies:
//   random    cuts one of the wires or answers "no circuit", each at most once, all alike; 20 games a day
//   hedged    cuts six random wires and then answers "no circuit"; 20 games a day
//   fixed     the six wires that are enough most often on these days, and then "no circuit": chosen with hindsight, without data of the day
//   fresh     takes the heads of layer 1 that attend from the last token to the answer or to the token after it, strongest first; cuts
//             their keys and then their values off each head of layer 0 that attends one token back; the last square is for "no circuit"
//   informed  uses what is on the screen: the text, the patterns and what cuts do to them and to the prediction
// One line for each policy: the share of days won, by kind of day, and the mean number of squares of won games.
import { readFileSync } from "node:fs";
import { wireName } from "../src/circuitkit/lab_page/planted.js";
import { Puzzle, SQUARES } from "../src/circuitkit/lab_page/puzzle.js";
import { Stream } from "../src/circuitkit/lab_page/random.js";

const [from, count] = process.argv.slice(2);
const isFile = from?.endsWith(".txt");
if (!isFile && !(Number(count) > 0)) throw new Error("give the first day and how many, such as 2026-11-28 365, or a file of texts that ends in .txt");
const GAMES = 20;
const NONE = "no circuit";
const WIRES = Array.from({ length: 48 }, (_, i) => wireName(i));
const HEADS = [0, 1, 2, 3];
const stream = new Stream("policies");

/** A new game with the model of another game. */
function again(puzzle) {
  return Object.assign(Object.create(Puzzle.prototype), puzzle, { cuts: [], squares: [], tried: new Map(), moves: [] });
}

function play(puzzle, moves) {
  for (const move of moves) {
    if (puzzle.over) break;
    if (move === NONE) puzzle.claim();
    else puzzle.cut(move);
  }
}

function random(puzzle) {
  const moves = [...WIRES, NONE];
  play(puzzle, stream.order(moves.length).map((i) => moves[i]));
}

function hedged(puzzle) {
  play(puzzle, [...stream.order(48).slice(0, SQUARES - 1).map((i) => WIRES[i]), NONE]);
}

/** How much head `head` of layer `layer` attends from one position to another, as the page shows it. */
function share(puzzle, layer, head, i, j) {
  const n = puzzle.planted.tokens.length;
  return puzzle.look().patterns[layer][head][i * n + j];
}

/** Heads of layer 1 that attend from the last token to the answer, or to the token after it, strongest first. */
function readersOf(puzzle) {
  const { tokens, answer } = puzzle.planted;
  const last = tokens.length - 1;
  const readers = HEADS.flatMap((head) => {
    const place = tokens.reduce((most, _, j) => (j > 1 && share(puzzle, 1, head, last, j) > share(puzzle, 1, head, last, most) ? j : most), 1);
    const seen = share(puzzle, 1, head, last, place);
    const side = tokens[place] === answer ? "K" : tokens[place - 1] === answer ? "V" : "";
    return seen > 0.3 && side ? [{ head, place, seen, side }] : [];
  });
  return readers.sort((a, b) => b.seen - a.seen);
}

function fresh(puzzle) {
  for (const { head, place } of readersOf(puzzle))
    for (const writer of HEADS)
      for (const side of ["K", "V"])
        if (share(puzzle, 0, writer, place, place - 1) > 0.5 && puzzle.squares.length < SQUARES - 1 && !puzzle.over) puzzle.cut(`L0H${writer}->L1H${head}.${side}`);
  while (!puzzle.over) puzzle.claim();
}

function informed(puzzle) {
  const last = puzzle.planted.tokens.length - 1;
  const good = new Set(); // writers whose cut has moved the attention of a reader
  const parts = [];
  for (const { head, place, side } of readersOf(puzzle)) {
    const writers = HEADS.filter((writer) => share(puzzle, 0, writer, place, place - 1) > 0.5);
    writers.sort((a, b) => Number(good.has(b)) - Number(good.has(a)));
    for (const name of [...puzzle.cuts]) if (!parts.includes(name)) puzzle.join(name);
    for (const writer of writers) {
      if (puzzle.squares.length === SQUARES - 1 && !parts.length) break; // the last square is for the answer
      const before = share(puzzle, 1, head, last, place);
      const name = `L0H${writer}->L1H${head}.${side}`;
      puzzle.cut(name);
      if (puzzle.over) return;
      if (puzzle.squares.at(-1) === "part") parts.push(name);
      if (side === "K" && share(puzzle, 1, head, last, place) < before / 2) {
        good.add(writer);
        break; // its attention has moved and the prediction has not: this head is not the one
      }
    }
  }
  while (!puzzle.over) puzzle.claim();
}

const dates = () => Array.from({ length: Number(count) }, (_, i) => new Date(Date.parse(from) + i * 86_400_000).toISOString().slice(0, 10));
const texts = isFile ? readFileSync(from, "utf8").trimEnd().split("\n") : dates();
const days = texts.map((text) => new Puzzle(text));
const kinds = ["simple", "redundant", "empty"];
const sizes = days.map(({ answers }) => Math.min(4, ...answers.map((set) => set.length)));
console.log(`days ${days.length}: ${kinds.map((kind) => `${kind} ${days.filter(({ planted }) => planted.kind === kind).length}`).join(", ")}`);
console.log(`least number of cuts that is enough: ${[1, 2, 3].map((size) => `${size} on ${sizes.filter((one) => one === size).length} days`).join(", ")}, none on ${sizes.filter((one) => one === 4).length}`);
console.log(`days on which a right answer exists: ${days.filter(({ answers, planted }) => (planted.kind === "empty") === !answers.length).length}`);
console.log(`most single wires that are enough on one day: ${Math.max(...days.map(({ answers }) => answers.filter((set) => set.length === 1).length))} of 48`);

function report(name, games) {
  const won = (some) => (some.filter((game) => game.won).length / some.length).toFixed(3);
  const wins = games.filter((game) => game.won);
  const squares = wins.reduce((sum, game) => sum + game.squares.length, 0) / wins.length;
  console.log(`${name.padEnd(9)} ${won(games)}  ${kinds.map((kind) => `${kind} ${won(games.filter(({ planted }) => planted.kind === kind))}`).join(", ")}; squares ${squares.toFixed(1)}`);
}

for (const [name, policy, times] of [["random", random, GAMES], ["hedged", hedged, GAMES], ["fresh", fresh, 1], ["informed", informed, 1]]) {
  report(name, days.flatMap((day) => Array.from({ length: times }, () => {
    const game = again(day);
    policy(game);
    return game;
  })));
}
const often = new Map(WIRES.map((name) => [name, days.filter(({ answers }) => answers.some((set) => set.length === 1 && set[0] === name)).length]));
const fixed = [...[...WIRES].sort((a, b) => often.get(b) - often.get(a)).slice(0, SQUARES - 1), NONE];
report("fixed", days.map((day) => {
  const game = again(day);
  play(game, fixed);
  return game;
}));
