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
 * @param {{at: number, answer: number, source: number, token: number, sourceToken: number, cropped: boolean, lastStep: number}} seen
 */
export function pythonFor(state, seen) {
  const { model, step, cuts, fill, head } = state;
  const list = `[${cuts.map((cut) => `"${cut}"`).join(", ")}]`;
  const heads = cuts.filter((cut) => !cut.includes(">"));
  const byMean = fill === "mean" && heads.length > 0;
  const from = ["induction", ...(byMean ? ["models"] : [])];
  const lines = [
    `model = ck.load_model("${model}"${step === seen.lastStep ? "" : `, step=${step}`})`,
    `tokens = model.to_tokens(${quoted(state.text)})${seen.cropped ? "[:, :256]" : ""}`,
  ];
  if (!byMean) lines.push(cuts.length ? `hooks = induction.hooks(model, ${list})` : "hooks = []  # nothing is out");
  else {
    const layers = [...new Set(heads.map((cut) => cut[1]))];
    const wires = cuts.filter((cut) => cut.includes(">"));
    lines.push(
      "_, held_out = model.run_with_cache(models.heldout_rows(8))",
      "def average(layer, heads):  # they say what they read out of held-out text on average",
      '    name = f"blocks.{layer}.attn.hook_z"',
      "    def put(z, hook):",
      "        z[:, :, heads] = held_out[name].mean((0, 1))[heads]",
      "        return z",
      "    return name, put",
      `hooks = [${layers.map((layer) => `average(${layer}, [${heads.filter((cut) => cut[1] === layer).map((cut) => cut[3])}])`).join(", ")}]`,
      ...(wires.length ? [`hooks += induction.hooks(model, [${wires.map((cut) => `"${cut}"`).join(", ")}])`] : []),
    );
  }
  lines.push(`logits = model.run_with_hooks(tokens, fwd_hooks=hooks)[0, ${seen.at}]`);
  const whole = cuts.length ? "  # of the whole model" : "";
  const parts = [
    `answer = tokens.clone().fill_(${seen.answer})`,
    `with model.hooks(fwd_hooks=hooks):`,
    `    parts = residual.logit_attribution(model, tokens, answer, versus="mean")`,
  ];
  const score = [`score = circuits.score_decomposition(model, tokens, "${head}", dst=${seen.at}, src=${seen.source})${whole}`];
  const words = [
    `raises = circuits.full_ov(model, "${head}")[${seen.sourceToken}].AB`,
    `looks_for = circuits.full_qk(model, "${head}")[${seen.token}].AB`,
  ];
  return {
    first: [`import circuitkit as ck`, `from circuitkit import circuits, ${from.join(", ")}, residual`],
    lines,
    parts,
    score: head ? score : [],
    words: head ? words : [],
  };
}
