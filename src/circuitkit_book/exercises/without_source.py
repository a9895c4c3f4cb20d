"""Exercise 5.4. `answer(model, tokens)` says how often a toy model completes, with its sources and without them.

**Shapes**: `tokens [prompt, pos]`; the result is `[2]`: of the places where a completion is due, the share at which
it has the largest logit, first in the prompts as they are, then with every source replaced by token `2n + 1`.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks
from circuitkit_book.exercises.shared import some_toy


def spec(model, tokens: Tensor) -> Tensor:
    n, rates = model.task.n_trigrams, torch.zeros(2, dtype=torch.float64)
    due = model.task.states(tokens) == 2
    for which in range(2):
        asked = tokens.clone()
        for row in range(len(tokens)):
            for pos in range(tokens.shape[1]):
                if which == 1 and tokens[row, pos] == 0:
                    asked[row, pos] = 2 * n + 1
        logits = model(asked)
        hits = [
            int(logits[row, pos].argmax()) == int(tokens[row, pos]) + n
            for row, pos in due.nonzero().tolist()
        ]
        rates[which] = sum(hits) / len(hits)
    return rates


def body(
    model,
    tokens,
    *,
    places="due",
    order=False,
    said="completion",
    changed="all",
    put="begin",
    average="places",
    gives="both",
):
    n, due = model.task.n_trigrams, model.task.states(tokens) == 2
    source, dest = tokens == 0, model.task.is_destination(tokens)
    gone = source & (source.cumsum(1) == 1) if changed == "first" else source
    new = {"begin": 2 * n + 1, "filler": 2 * n, "destination": 1, "completion": n + 1}[put]
    bare = {
        "none": lambda: tokens, "begin": lambda: tokens.masked_fill(tokens == 2 * n + 1, 0),
        "negatives": lambda: model.task.negatives(len(tokens), seed=0),
    }.get(changed, lambda: tokens.masked_fill(gone, new))()  # fmt: skip
    where = {
        "destinations": dest,
        "all": torch.ones_like(due),
        "after": due.roll(1, 1),
        "rows": dest & source.any(1, keepdim=True),
        "waiting": model.task.states(tokens) == 1,
        "either": model.task.states(tokens) > 0,
        "last": due & (due.flip(1).cumsum(1).flip(1) == 1),
        "first": due & (due.cumsum(1) == 1),
        "end": due & (torch.arange(due.shape[1]) == due.shape[1] - 1),
        "rest": dest & ~due,
    }.get(places, due)
    rates = []
    for asked in (tokens, bare):
        here = model.task.states(asked) == 2 if places == "recounted" else where
        if changed == "negatives" and asked is bare:
            here, base = model.task.is_destination(bare), bare
        else:
            base = tokens
        wanted = {
            "itself": base,
            "next": base.roll(-1, 1),
            "one on": base + n + 1,
            "one low": base + n - 1,
        }.get(said, base + n)
        logits = model(asked)
        logits = (
            logits.roll(1 if said == "place before" else -1, 1)
            if said in ("place before", "place after")
            else logits
        )
        right = wanted.clamp_max(2 * n + 1)[..., None]
        hit = {
            "chance": logits.softmax(-1).gather(-1, right)[..., 0],
            "top": logits.gather(-1, right)[..., 0],
        }.get(said, logits.argmax(-1) == wanted)
        if said in ("positive", "half", "any"):
            best, own = logits.argmax(-1), logits.gather(-1, right)[..., 0]
            hit = {"positive": own > 0, "half": (own - logits.logsumexp(-1)).exp() > 0.5,
                   "any": (best > n) & (best <= 2 * n)}[said]  # fmt: skip
        if said == "among":
            hit = logits[..., n + 1 : 2 * n + 1].argmax(-1) + n + 1 == wanted
        if said == "next":  # nothing follows the last token
            here = here & (torch.arange(here.shape[1]) < here.shape[1] - 1)
        hit, some = hit.double() * here, here.any(1)
        rates.append({
            "prompts": (hit.sum(1)[some] / here.sum(1)[some]).mean(), "everywhere": hit.mean(), "count": hit.sum(),
        }.get(average, hit.sum() / here.sum().clamp_min(1)))  # fmt: skip
    rates = torch.stack(rates[::-1] if order else rates)
    return {"first": rates[0], "second": rates[1], "gap": rates[0] - rates[1]}.get(gives, rates)


def _prompts(size: dict[str, int], generator: torch.Generator, case: dict) -> Tensor:
    """Prompts of the task, some of their tokens drawn anew: so a due completion does not always follow."""
    task = case["model"].task
    tokens = task.sample(40 + 5 * size["step"], seed=30 + size["step"])
    other = torch.rand(tokens.shape, generator=generator) < 0.3 * (size["step"] > 1)
    return torch.where(
        other, torch.randint(2 * task.n_trigrams + 2, tokens.shape, generator=generator), tokens
    )


EXERCISE = Exercise(
    about="5.4 take the source away | medium | 20 minutes | 05-attention-superposition#the-published-check-passes-a-model-that-never-looks",
    spec=spec, body=body, trials=8,
    inputs={"model": lambda size, generator, case: some_toy(size["step"]), "tokens": _prompts},
    names=("rate",),
    choices="""
    places = destinations | every destination is counted | Count where a completion was due in the *first* prompt: `model.task.states(tokens) == 2`.
    places = all | every position is counted | Count where a completion was due: `model.task.states(tokens) == 2`.
    places = after | the positions are one too late | The state after a token is written at the token.
    places = waiting / either / rest | places are counted at which no completion is due | It is due where `model.task.states(tokens) == 2`.
    places = rows | destinations are counted in every prompt that has a source | A source may come too late, or be used up.
    places = recounted | the second rate is always 0 | Is it asked anew, after the change, where a completion is due? Nothing is, without a source: count the same places both times.
    said = itself | a hit is the destination itself | What should follow destination b?
    said = next | a hit is the token that follows in the prompt | The last place of a prompt has none. The completion of destination b is b + n.
    said = one on / one low | the completion is taken to be another token than b + n | The completion of destination b is b + n.
    said = among | the completion is compared with other completions alone | It has to beat every token.
    said = place before / place after | the prediction is read at the place before, or after | The logits at a place say what follows it.
    said = positive / half | a completion counts when its logit is positive, or its chance above one half | It has to be the largest of all tokens.
    said = any | any completion counts as a hit | Destination b has one, b + n.
    places = last / first / end | only one place of each prompt is counted | Count all at which a completion is due.
    said = top | it is the completion's logit, not how often it is the largest | Count how often the completion has the largest logit.
    said = chance | it is the chance, not how often it is the largest | Count how often the completion has the largest logit.
    order = True | with and without are exchanged | First the prompts as they are.
    changed = none | nothing was taken away | Do you run the changed prompts?
    changed = first | only the first source of a prompt is taken away | A prompt may hold several.
    changed = begin | sources are put in where prompts begin, instead of taken away | Which token is the source, and which one begins a prompt?
    changed = negatives | the second rate comes from other prompts | Only the source may differ. Change these prompts, and count the same places.
    put = filler / destination / completion | another token than 2n + 1 is put in the source's place | Replace it by token 2n + 1, which means nothing in the middle of a prompt.
    average = prompts | each prompt's share is taken first, then their average | Every place counts alike: gather the places of all prompts.
    average = everywhere / count | hits are not divided by the number of places at which a completion is due | How many such places are there?
    gives = gap | it is the difference | Return both rates, not their difference.
    """,
)  # fmt: skip
check_without_source = checks(EXERCISE, __doc__)
