/**
 * The lines of Python that compute what the page shows.
 */

/** @typedef {import("./state.js").State} State */

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
 * @param {{at: number, answer: number, source: number, token: number, sourceToken: number, text: string, tokenText: string, via: string, sourceText: string, cropped: boolean, lastStep: number}} seen
 */
export function pythonFor(state, seen) {
  const { model, step, cuts, fill, head } = state;
  const list = (/** @type {string[]} */ names) => `[${names.map((name) => `"${name}"`).join(", ")}]`;
  const heads = cuts.filter((cut) => !cut.includes(">"));
  const wires = cuts.filter((cut) => cut.includes(">"));
  const byMean = fill === "mean" && heads.length > 0;
  const lines = [
    `model = ck.load_model("${model}"${step === seen.lastStep ? "" : `, step=${step}`})`,
    `tokens = model.to_tokens(${quoted(state.text)}${seen.cropped ? ", truncate=True" : ""})`,
  ];
  if (byMean)
    lines.push(
      "held_out = ck.anatomy(model).run(ck.models.heldout_rows(8))",
      "def average(sublayer, z):  # they say what they read out of held-out text on average",
      `    for head in {*${list(heads)}} & {*sublayer.parts}:`,
      "        row = sublayer.parts.index(head)",
      "        z[:, row] = held_out.gathered[sublayer.name][:, row].mean((0, 1))",
      "    return z",
    );
  const changes = [
    ...(byMean ? (wires.length ? [`without=${list(wires)}`] : []) : cuts.length ? [`without=${list(cuts)}`] : []),
    ...(byMean ? ["edit=average"] : []),
  ];
  lines.push(`run = ck.anatomy(model).run(${["tokens", ...changes].join(", ")})`, `logits = run.logits[0, ${seen.at}]`, "print(*zip(model.to_str_tokens(logits.topk(5).indices), logits.softmax(-1).topk(5).values.tolist()), sep=\"\\n\")");
  const said = (/** @type {string} */ text) => `  # ${quoted(text)}`;
  const parts = [
    `toward = model.W_U[:, ${seen.answer}] - model.W_U.mean(1)${said(seen.text)}`,
    `parts = {name: float(run.part(name)[0, ${seen.at}] @ toward) for name in run.model.parts()}`,
    "print({name: round(value, 1) for name, value in parts.items()})",
  ];
  // The library takes the score of a whole model apart; here its two sides are those of the run with the cuts.
  const into = wires.flatMap((wire) => {
    const [from, to] = wire.split("->");
    const side = { [`${head}.Q`]: "queries", [`${head}.K`]: "keys" }[to];
    return side ? [`${side}[names.index("${from}")] = 0  # the wire ${wire} is cut`] : [];
  });
  const score = cuts.length
    ? [`names, queries, keys = run.score_sides("${head}", ${seen.at}, ${seen.source})`, ...into, "score = queries @ keys.T", "print(names, score, sep=\"\\n\")"]
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
    first: ["import circuitkit as ck", "from circuitkit import circuits"],
    lines,
    parts,
    score: head ? score : [],
    words: head ? words : [],
  };
}
