"""Eight questions in transformer-lens and here: both are run, their answers compared, their times measured in turns.

    python -m tools one-line             print what each takes
    python -m tools one-line --store     and write the page `book/one-line.md`

The code on the page is the code that runs. Times are ratios of the least processor seconds of several turns in one process.
"""

import argparse
import math
import time
from pathlib import Path
from typing import NamedTuple

import torch

PAGE = Path(__file__).resolve().parents[2] / "book" / "one-line.md"
SETUP = """\
import torch, circuitkit as ck
from transformer_lens import FactoredMatrix
model = ck.load_model("two-layer")
rows = ck.induction.repeated_tokens(model.cfg.d_vocab, 64, batch=8, bos=model.tokenizer.bos_token_id)
tokens = rows.tokens
heads = ck.heads(model)
"""


class Task(NamedTuple):
    """Two pieces of code that leave the same numbers in `found`."""

    title: str
    theirs: str
    ours: str


TASKS = (
    Task(
        "Which head feeds which, all pairs",
        'found = model.all_composition_scores("K").scores.flatten(0, 1).flatten(1)',
        'found = ck.circuits.composition_scores(heads, heads, "K").score',
    ),
    Task(
        "Which heads are induction heads",
        "_, cache = model.run_with_cache(tokens)\n"
        "found = []\n"
        "for layer in range(model.cfg.n_layers):\n"
        "    pattern = cache[f'blocks.{layer}.attn.hook_pattern'][:, :, rows.start + rows.period :]\n"
        "    found.append(pattern.diagonal(rows.start + 1, -2, -1).mean((0, 2)))\n"
        "found = torch.cat(found)",
        "found = ck.induction.scores(model, rows).prefix_matching",
    ),
    Task(
        "What each head adds to the logit of the next token",
        "_, cache = model.run_with_cache(tokens)\n"
        "found = []\n"
        "for layer in range(model.cfg.n_layers):\n"
        "    z = cache[f'blocks.{layer}.attn.hook_z'][:, :-1]\n"
        "    result = torch.einsum('bphd,hdm->hbpm', z, model.W_O[layer])\n"
        "    found.append((result * model.W_U.T[tokens[:, 1:]]).sum(-1))\n"
        "found = torch.cat(found)",
        "shares = ck.residual.logit_attribution(model, tokens[:, :-1], tokens[:, 1:])\n"
        "found = shares.values[[shares.names.index(name) for name in heads.names]]",
    ),
    Task(
        "What a head raises after each token",
        "found = (model.W_E @ model.W_V[0, 1] @ model.W_O[0, 1] @ model.W_U).topk(10).values",
        'found = ck.circuits.top_per_row(ck.circuits.full_ov(model, "L0H1"), 10).values',
    ),
    Task(
        "Which heads copy",
        "found = []\n"
        "for layer in range(model.cfg.n_layers):\n"
        "    for head in range(model.cfg.n_heads):\n"
        "        values = (FactoredMatrix(model.W_E @ model.W_V[layer, head], model.W_O[layer, head] @ model.W_U)).eigenvalues\n"
        "        found.append((values.sum() / values.abs().sum()).real)\n"
        "found = torch.stack(found)",
        "found = ck.circuits.copying_score(model).score",
    ),
    Task(
        "The loss without a head",
        "def without(z, hook):\n"
        "    z[:, :, 3] = 0\n"
        "logits = model.run_with_hooks(tokens, fwd_hooks=[('blocks.1.attn.hook_z', without)])\n"
        "found = -logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]",
        'found = ck.induction.losses_by_position(model, tokens, without=["L1H3"])',
    ),
    Task(
        "The loss without one wire into the keys of a head",
        "_, cache = model.run_with_cache(tokens)\n"
        "z = cache['blocks.0.attn.hook_z'][:, :, 1]\n"
        "less = z @ model.W_O[0, 1] @ model.W_K[1, 3]\n"
        "def without(k, hook):\n"
        "    k[:, :, 3] -= less\n"
        "logits = model.run_with_hooks(tokens, fwd_hooks=[('blocks.1.attn.hook_k', without)])\n"
        "found = -logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]",
        'found = ck.induction.losses_by_position(model, tokens, without=["L0H1->L1H3.K"])',
    ),
    Task(
        "What one head reads of what another wrote",
        "found = model.W_O[0, 1] @ model.W_K[1, 3]",
        'found = ck.residual.virtual_weights(model, "L0H1", "L1H3.K").AB',
    ),
)


def measured(times: int = 5) -> list[tuple[Task, float, float]]:
    """Each task with our time over theirs, and the largest difference of the answers over the largest answer."""
    names: dict = {}
    exec(SETUP, names)
    rows = []
    for task in TASKS:
        least = {task.theirs: math.inf, task.ours: math.inf}
        answers = []
        for _ in range(times):
            for code in least:
                ready, start = compile(code, task.title, "exec"), time.process_time()
                exec(ready, names)
                least[code] = min(least[code], time.process_time() - start)
                answers.append(names["found"])
        off = max(float((answer - answers[1]).abs().max()) for answer in answers) / float(answers[1].abs().max())
        rows.append((task, least[task.ours] / least[task.theirs], off))
    return rows


def page(rows: list[tuple[Task, float, float]]) -> str:
    """The page: both pieces of code, and our time as a share of theirs."""
    parts = [
        "# In transformer-lens, and here\n",
        "Questions asked in transformer-lens and in this library, of the shipped two-layer model on rows of random\n"
        "tokens that come twice. The code on this page is run, both answers are compared, and the times are measured in turns,\n"
        "in one process on one core, by `python -m tools one-line --store`. A share below one means that the line of this\n"
        "library is faster. It is not always: a small product of two matrices is faster written out, and what the library\n"
        "adds there is that it checks names and folds norms in.\n",
        f"```python\n{SETUP}```\n",
    ]
    for task, ratio, _ in rows:
        parts.append(f"## {task.title}\n\n```python\n# transformer-lens\n{task.theirs}\n```\n\n```python\n# here: {ratio:.2g} of the time\n{task.ours}\n```\n")
    return "\n".join(parts)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true")
    torch.set_num_threads(1)
    rows = measured()
    for task, ratio, off in rows:
        print(f"{task.title:<60}{ratio:>8.3f}   differs by {off:.1e}")
    if parser.parse_args().store:
        PAGE.write_text(page(rows), "utf-8")


if __name__ == "__main__":
    main()
