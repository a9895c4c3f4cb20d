/**
 * The lines of Python that compute what the page shows.
 */

import { parseGate } from "./names.js";
import { OWN } from "./session.js";

/** @typedef {import("./state.js").State} State */

/** @typedef {import("./interface.js").OwnModel} OwnModel */

/** A string of Python with nothing in it but ASCII that can be seen. @param {string} text */
export function quoted(text) {
  const inside = Array.from(text, (character) => {
    const code = character.codePointAt(0) ?? 0;
    if (character === '"' || character === "\\") return `\\${character}`;
    if (code === 10) return "\\n";
    if (code >= 32 && code < 127) return character;
    const hex = code.toString(16);
    return code < 256 ? `\\x${hex.padStart(2, "0")}` : code < 65536 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
  });
  return `"${inside.join("")}"`;
}

/**
 * Three lines for the logits, and the lines of the open panel.
 * @param {State} state
 * @param {{own: OwnModel | null, fits: boolean, back: number, at: number, answer: number, source: number, token: number, sourceToken: number, text: string, tokenText: string, via: string, sourceText: string, cropped: boolean, lastStep: number}} seen
 */
export function pythonFor(state, seen) {
  if (seen.own || /mlp|gated/.test(state.model)) return pythonForOwn(state, seen, seen.own);
  const { model, step, cuts, fill, head } = state;
  const list = (/** @type {string[]} */ names) => `[${names.map((name) => `"${name}"`).join(", ")}]`;
  const heads = cuts.filter((cut) => !cut.includes(">"));
  const wires = cuts.filter((cut) => cut.includes(">"));
  const byMean = fill === "mean" && heads.length > 0;
  const lines = [
    `model = ck.load_model("${model}"${step === seen.lastStep ? "" : `, step=${step}`})`,
    `tokens = model.to_tokens(${quoted(state.text)}${seen.cropped ? ", truncate=True" : ""})`,
  ];
  const patched = fill === "patch" && seen.fits && cuts.length > 0;
  if (patched) lines.push(`other = model.to_tokens(${quoted(state.other ?? "")}${seen.cropped ? ", truncate=True" : ""})`);
  if (byMean)
    lines.push(
      "_, held_out = model.run_with_cache(ck.models.heldout_rows(8))",
      "def average(z, hook, head):  # what a head gathers in held-out text on average",
      "    z[:, :, head] = held_out[hook.name][:, :, head].mean((0, 1))",
      "    return z",
      `for name in ${list(heads)}:`,
      "    layer, head = int(name[1]), int(name[3:])",
      "    model.add_hook(f\"blocks.{layer}.attn.hook_z\", partial(average, head=head), is_permanent=True)",
    );
  const without = byMean ? wires : fill === "patch" && !patched ? [] : cuts;
  const changes = [...(without.length ? [`without=${list(without)}`] : []), ...(patched ? ["patch=other"] : [])];
  lines.push(`run = ck.run(${["model", "tokens", ...changes].join(", ")})`, `logits = run.logits[0, ${seen.at}]`, "print(*zip(model.to_str_tokens(logits.topk(5).indices), logits.softmax(-1).topk(5).values.tolist()), sep=\"\\n\")");
  const said = (/** @type {string} */ text) => `  # ${quoted(text)}`;
  const parts = [
    `toward = model.W_U[:, ${seen.answer}] - model.W_U.mean(1)${said(seen.text)}`,
    `parts = {name: float(value[0, ${seen.at}]) for name, value in run.contributions(toward).items()}`,
    "print({name: round(value, 1) for name, value in parts.items()})",
  ];
  // The library splits the score of an intact model; here both sides come from the run with the cuts.
  const into = wires.flatMap((wire) => {
    const [from, to] = wire.split("->");
    const side = { [`${head}.Q`]: "queries", [`${head}.K`]: "keys" }[to];
    const [place, by] = side === "queries" ? [seen.at, "W_Q[0] / weights.scale"] : [seen.source, "W_K[0]"];
    const value = patched ? `ck.run(model, other).part("${from}")[0, ${place}] @ weights.${by}  # the wire ${wire} is patched` : `0  # the wire ${wire} is cut`;
    return side ? [`${side}[names.index("${from}")] = ${value}`] : [];
  });
  const score = without.length || byMean
    ? [
        `shares, weights = run.parts(before="${head}"), ck.heads_of(model)["${head}"]`,
        "names = list(shares)",
        `queries = torch.stack([part[0, ${seen.at}] for part in shares.values()]) @ weights.W_Q[0] / weights.scale`,
        `keys = torch.stack([part[0, ${seen.source}] for part in shares.values()]) @ weights.W_K[0]`,
        ...into,
        "score = queries @ keys.T",
        "print(names, score, sep=\"\\n\")",
      ]
    : [`score = ck.paths.score_decomposition(model, tokens, "${head}", dst=${seen.at}, src=${seen.source})`, "print(score)"];
  const words = [
    `raises = circuits.full_ov(model, "${head}")[${seen.sourceToken}].AB${said(seen.sourceText)}`,
    ...(seen.via
      ? [
          "heads = ck.heads_of(model)",
          `note = model.W_E @ heads["${seen.via}"].OV.AB[0]  # what ${seen.via} writes about each token`,
          `looks_for = model.W_E[${seen.token}] @ heads["${head}"].QK.AB[0] @ note.T / heads.scale${said(seen.tokenText)}`,
        ]
      : [`looks_for = circuits.full_qk(model, "${head}")[${seen.token}].AB${said(seen.tokenText)}`]),
    "for row in (raises, looks_for):  # the first eight of each, from the weights alone",
    "    print(model.to_str_tokens(row.flatten().topk(8).indices))",
  ];
  return {
    first: ["from functools import partial", "import torch", "import circuitkit as ck", "from circuitkit import circuits"],
    lines,
    parts,
    score: head ? score : [],
    words: head ? words : [],
  };
}

/** How the model of the page is made in Python. @param {string} model @param {string[]} cuts */
function made(model, cuts) {
  const [, of, heads] = /^(.*-mlp)-(\d)$/.exec(model) ?? [];
  if (of) return [`model = ck.to_attention_only(ck.load_model("${of}"), heads_per_neuron=${heads})`];
  if (model === OWN) return ["model = ...  # the model that ck.lab was given; its weights are not rounded"];
  if (model !== "gated") return [`model = ck.load_model("${model}")`];
  const forced = cuts.flatMap((name) => parseGate(name) ?? []).map(({ head, open }) => `${head.slice(3)}: ${Number(open)}`);
  const hook = [
    `forced = {${forced.join(", ")}}  # the gates of these heads`,
    "def gates(pattern, hook):",
    "    plain = model.blocks[0].attn.block.pattern(model.W_E[tokens])",
    "    for head, gate in forced.items():",
    "        pattern[:, head] = gate * plain[:, head]",
    "    return pattern",
    "model.add_hook(\"blocks.0.attn.hook_pattern\", gates, is_permanent=True)",
  ];
  return ["from circuitkit_book import superposition_models", "model = superposition_models.load_gated()", ...(forced.length ? hook : [])];
}

/**
 * The same for a model that the reader has brought, and for those with MLPs or gates.
 * @param {State} state @param {Parameters<typeof pythonFor>[1]} seen @param {OwnModel | null} own
 */
function pythonForOwn({ model, text, cuts: all, fill, head, other = "" }, seen, own) {
  const { types, rotary } = own ?? { types: true, rotary: false };
  const chosen = all.filter((name) => !parseGate(name));
  const named = (/** @type {string} */ text) => `torch.tensor([["A B1 B2 B3 B4 B5 C1 C2 C3 C4 C5 start".split().index(name) for name in ${quoted(text)}.split()]])`;
  const tokensOf = (/** @type {string} */ text) => (model === "gated" ? named(text) : types ? `model.to_tokens(${quoted(text)}${seen.cropped ? ", truncate=True" : ""})` : `torch.tensor([[${text.split(/[\s,]+/).filter(Boolean).join(", ")}]])`);
  const cuts = fill === "patch" && !seen.fits ? [] : chosen;
  const patch = fill === "patch" && cuts.length ? ", patch=other" : "";
  const without = cuts.length ? `, without=[${cuts.map((name) => `"${name}"`).join(", ")}]` : "";
  const lines = [
    ...made(model, all),
    `tokens = ${tokensOf(text)}`,
    ...(patch ? [`other = ${tokensOf(other)}`] : []),
    ...(cuts.length && fill === "mean" ? ["# The page takes the mean over all positions of the texts, and fill=\"mean\" takes it", "# over the rows of tokens, position by position. These lines replace by zero."] : []),
    `run = ck.run(model, tokens${without}${patch})`,
    `logits = run.logits[0, ${seen.at}]`,
    "print(logits.topk(5))",
  ];
  const offset = rotary ? `, offset=${seen.back}` : "";
  const intact = !all.length;
  return {
    first: ["import torch", "import circuitkit as ck"],
    lines,
    parts: intact ? [`parts = ck.why(model, tokens, ${seen.answer}, position=${seen.at})`, "print(parts.to_frame())"] : [],
    score: intact && head && model !== "gated" ? [`print(ck.paths.score_decomposition(model, tokens, "${head}", dst=${seen.at}, src=${seen.source}))`] : [],
    words: head ? [`raises = ck.circuits.full_ov(model, "${head}")[${seen.sourceToken}].AB`, ...(seen.via || model === "gated" ? [] : [`looks_for = ck.circuits.full_qk(model, "${head}"${offset})[${seen.token}].AB`])] : [],
  };
}
