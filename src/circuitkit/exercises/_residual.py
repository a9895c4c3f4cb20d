"""Exercises of chapter 1, on the residual stream."""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from circuitkit.exercises._check import Result, check
from circuitkit.exercises._exercise import Case, Exercise, Mistake, built, normal, sizes

_PAGE = "01-residual-stream"


# --- 1.1 a logit in parts ------------------------------------------------------------------------------------------


def _logit_spec(parts: Tensor, W_U: Tensor, token: int) -> Tensor:
    out = torch.zeros(parts.shape[0], dtype=torch.float64)
    for component, part in enumerate(parts):
        logits = [torch.dot(part, W_U[:, word]) for word in range(W_U.shape[1])]
        out[component] = logits[token] - sum(logits) / len(logits)
    return out


def _draw_logit(generator: torch.Generator, step: int) -> Case:
    components, d_model, vocab = sizes(generator, step, 3)
    return _logit_case(generator, components, d_model, vocab)


def _logit_case(generator: torch.Generator, components: int, d_model: int, vocab: int) -> Case:
    return {
        "parts": normal(generator, components, d_model),
        "W_U": normal(generator, d_model, vocab),
        "token": int(torch.randint(vocab, (), generator=generator)),
    }


def _above_others(parts: Tensor, W_U: Tensor, token: int) -> Tensor:
    logits = parts @ W_U
    return logits[:, token] - (logits.sum(1) - logits[:, token]) / (W_U.shape[1] - 1)


LOGIT = Exercise(
    number="1.1",
    title="a logit in parts",
    minutes=10,
    difficulty="easy",
    read=f"{_PAGE}#the-stream-is-a-sum",
    spec=_logit_spec,
    draw=_draw_logit,
    square=lambda generator: _logit_case(generator, 3, 3, 3),
    names=("component",),
    mistakes=(
        Mistake(
            "the mean over the vocabulary is not subtracted",
            lambda parts, W_U, token: parts @ W_U[:, token],
            "A component that raises all logits alike says nothing about this token. What does it add to an average one?",
            read=f"{_PAGE}#see-it-first",
        ),
        Mistake(
            "the mean over the components is subtracted",
            lambda parts, W_U, token: parts @ W_U[:, token] - (parts @ W_U[:, token]).mean(),
            "Compare tokens, not components: each part is held against what the same part gives to the average token.",
        ),
        Mistake(
            "the token is left out of the mean",
            _above_others,
            "The reference is the mean over the whole vocabulary, the token itself included.",
        ),
        Mistake(
            "a row of W_U is taken instead of a column",
            lambda parts, W_U, token: parts @ W_U[token] - parts @ W_U.mean(0),
            "W_U is [d_model, vocab]. Along which axis do the tokens lie?",
            read="conventions",
        ),
        Mistake(
            "a softmax is taken of each part",
            lambda parts, W_U, token: (parts @ W_U).softmax(-1)[:, token],
            "Logits add up over components; probabilities do not. Stay with logits.",
        ),
        Mistake(
            "a log-softmax is taken of each part",
            lambda parts, W_U, token: (parts @ W_U).log_softmax(-1)[:, token],
            "The logarithm of the normaliser does not split into components. The plain mean over the vocabulary does.",
        ),
        Mistake(
            "the mean runs over the dimensions of W_U",
            lambda parts, W_U, token: parts @ (W_U[:, token] - W_U.mean(0)),
            "That mean has one number for each token. You need the average token: one number for each dimension.",
        ),
        Mistake(
            "the mean of all entries of W_U is subtracted",
            lambda parts, W_U, token: parts @ (W_U[:, token] - W_U.mean()),
            "One number cannot be the average token, which is a vector of d_model. Which axis is to be averaged away?",
        ),
        Mistake(
            "the logits of all tokens",
            lambda parts, W_U, token: parts @ W_U,
            "These are all logits of each component. Which column is asked for, and what is to be subtracted from it?",
        ),
        Mistake(
            "the whole logit, not its parts",
            lambda parts, W_U, token: (parts.sum(0) @ W_U)[token] - (parts.sum(0) @ W_U).mean(),
            "That is what the parts have to sum to. Do the same with each row of parts.",
        ),
        Mistake(
            "the parts are scaled to sum to 1",
            lambda parts, W_U, token: _logit_spec(parts, W_U, token) / _logit_spec(parts, W_U, token).sum(),
            "Parts can be negative and their sum can be near zero, so shares mislead. Return the parts in logits.",
        ),
    ),
)


def check_logit_in_parts(answer) -> Result:
    """Exercise 1.1. `answer(parts, W_U, token)` returns what each component adds to the token's logit above the mean.

    **Shapes**: `parts [component, d_model]` at one position, `W_U [d_model, vocab]`, `token` an integer; the result is
    `[component]`. The mean is taken over the vocabulary.
    """
    return check(LOGIT, answer)


# --- 1.2 the same through a LayerNorm ------------------------------------------------------------------------------


def _norm_spec(parts: Tensor, gain: Tensor, W_U: Tensor, token: int, eps: float) -> Tensor:
    components, d_model = parts.shape
    total = [sum(parts[c, i] for c in range(components)) for i in range(d_model)]
    mean = sum(total) / d_model
    scale = (sum((number - mean) ** 2 for number in total) / d_model + eps) ** 0.5
    out = torch.zeros(components, dtype=torch.float64)
    for c in range(components):
        own = sum(parts[c]) / d_model
        for i in range(d_model):
            out[c] += (parts[c, i] - own) / scale * gain[i] * W_U[i, token]
    return out


def _normed(parts, gain, W_U, token, eps, *, centre="own", scale="std"):
    """Contributions through a LayerNorm with one thing wrong."""
    total = parts.sum(0)
    centres = {
        "own": parts.mean(1, keepdim=True),
        "whole": total.mean(),
        "share": total.mean() / len(parts),
        "parts": parts.mean(0),
        "none": 0.0,
    }
    scales = {
        "std": (total.var(correction=0) + eps).sqrt(),
        "sample": (total.var() + eps).sqrt(),
        "norm": (total - total.mean()).norm(),
        "no eps": total.std(correction=0),
        "torch std": total.std(),
        "eps outside": total.std(correction=0) + eps,
        "rms": (total.square().mean() + eps).sqrt(),
        "no root": total.var(correction=0) + eps,
        "none": 1.0,
    }
    return ((parts - centres[centre]) / scales[scale] * gain) @ W_U[:, token]


def _draw_norm(generator: torch.Generator, step: int) -> Case:
    components, d_model, vocab = sizes(generator, step, 3, smallest=3)
    return {
        "parts": normal(generator, components, d_model),
        "gain": normal(generator, d_model) + 1,
        "W_U": normal(generator, d_model, vocab),
        "token": int(torch.randint(vocab, (), generator=generator)),
        "eps": 0.01,
    }


THROUGH_NORM = Exercise(
    number="1.2",
    title="the same through a LayerNorm",
    minutes=15,
    difficulty="medium",
    read=f"{_PAGE}#with-a-norm",
    spec=_norm_spec,
    draw=_draw_norm,
    names=("component",),
    mistakes=(
        Mistake(
            "each part is divided by its own length",
            lambda parts, gain, W_U, token, eps: layer_norm(parts, parts.shape[1:], gain, eps=eps) @ W_U[:, token],
            "The model normalises once, the sum. Which single number does it divide by, for all parts alike?",
        ),
        Mistake(
            "the parts are not centred",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, centre="none"),
            "The norm subtracts the mean over the coordinates, and the mean of a sum is the sum of the means.",
        ),
        Mistake(
            "the mean of the whole stream is subtracted from every part",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, centre="whole"),
            "So it is subtracted once for each component. What must you take from each part so that the sum is right?",
        ),
        Mistake(
            "each part loses an equal share of the mean",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, centre="share"),
            "The sum comes out right, the parts do not: a part without a mean of its own loses something, too. Whose mean "
            "does each part bring along?",
        ),
        Mistake(
            "the mean over the components is subtracted",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, centre="parts"),
            "A LayerNorm knows nothing of components: it averages over the coordinates of one vector.",
        ),
        Mistake(
            "the variance is divided by d_model - 1",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, scale="sample"),
            "torch's var and std are those of a sample unless told otherwise; a LayerNorm divides by d_model.",
        ),
        Mistake(
            "the plain torch.std of the stream",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, scale="torch std"),
            "It differs from the model's divisor in two ways: torch.std divides the squares by d_model - 1 unless told "
            "otherwise, and eps is missing.",
        ),
        Mistake(
            "the plain torch.std of the stream, and the parts are not centred",
            lambda parts, gain, W_U, token, eps: _normed(
                parts, gain, W_U, token, eps, centre="none", scale="torch std"
            ),
            "Two things. The norm subtracts a mean before it divides; do that to each part. And torch.std divides the squares "
            "by d_model - 1 unless told otherwise, and knows no eps.",
        ),
        Mistake(
            "the variance instead of its root",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, scale="no root"),
            "A stream twice as long has four times the variance. What divides a length out?",
        ),
        Mistake(
            "it is an RMSNorm",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, centre="none", scale="rms"),
            "No mean is subtracted, neither from the parts nor before the stream is measured. A LayerNorm does both.",
        ),
        Mistake(
            "eps is added outside of the root",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, scale="eps outside"),
            "It is added to the variance, before the root is taken.",
        ),
        Mistake(
            "the mean over the vocabulary is subtracted",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U - W_U.mean(1, keepdim=True), token, eps),
            "That was the exercise before. This time the parts are to sum to the logit itself.",
        ),
        Mistake(
            "the length instead of the standard deviation",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, scale="norm"),
            "A length sums the squares, a variance averages them: a factor of sqrt(d_model) lies between.",
        ),
        Mistake(
            "the divisor is taken before centring",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, scale="rms"),
            "That is RMSNorm's divisor. A LayerNorm measures the stream after its mean is gone.",
        ),
        Mistake(
            "eps is forgotten",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, scale="no eps"),
            "The model adds a small number to the variance, under the root; without it the parts do not sum to its logit.",
        ),
        Mistake(
            "the gain is forgotten",
            lambda parts, gain, W_U, token, eps: _normed(parts, torch.ones_like(gain), W_U, token, eps),
            "After dividing, a LayerNorm multiplies each coordinate by a learned number.",
        ),
        Mistake(
            "nothing is divided",
            lambda parts, gain, W_U, token, eps: _normed(parts, gain, W_U, token, eps, scale="none"),
            "Centring and gain are there, but the divisor is missing: one number, made from the whole sum.",
        ),
    ),
)


def check_logit_through_norm(answer) -> Result:
    """Exercise 1.2. `answer(parts, gain, W_U, token, eps)` splits the logit that is read through a LayerNorm.

    **Shapes**: `parts [component, d_model]`, `gain [d_model]`, `W_U [d_model, vocab]`, `token` an integer, `eps` the
    number added to the variance; the result is `[component]`. The norm's bias is zero here.
    """
    return check(THROUGH_NORM, answer)


# --- 1.3 what a head can hear --------------------------------------------------------------------------------------


def _heard_spec(x: Tensor, W: Tensor) -> Tensor:
    basis: list[Tensor] = []  # Gram-Schmidt, column by column
    for column in W.T:
        rest = column.clone()
        for direction in basis:
            rest = rest - torch.dot(rest, direction) * direction
        basis.append(rest / torch.dot(rest, rest).sqrt())
    out = torch.zeros_like(x)
    for pos, row in enumerate(x):
        for direction in basis:
            out[pos] += torch.dot(row, direction) * direction
    return out


def _draw_heard(generator: torch.Generator, step: int) -> Case:
    pos, one, other = sizes(generator, step, 3)
    d_head, d_model = sorted((one, other))
    return {"x": normal(generator, pos, d_model), "W": normal(generator, d_model, d_head)}


def _sloppy_basis(W: Tensor) -> Tensor:
    return W / W.norm(dim=0)


def _stretched(x: Tensor, W: Tensor) -> Tensor:
    left, size, _ = torch.linalg.svd(W, full_matrices=False)
    return x @ left @ torch.diag(size) @ left.T


HEARD = Exercise(
    number="1.3",
    title="what a head can hear",
    minutes=15,
    difficulty="medium",
    read=f"{_PAGE}#heads-read-little-and-write-little",
    spec=_heard_spec,
    draw=_draw_heard,
    names=("position", "dimension"),
    mistakes=(
        Mistake(
            "the part that the head cannot hear",
            lambda x, W: x - _heard_spec(x, W),
            "Your result times W is zero. Which part of x has the same product with W as x itself?",
        ),
        Mistake(
            "W is taken as if its columns were orthonormal",
            lambda x, W: x @ W @ W.T,
            "Project a second time: a projection changes nothing then, yours does. Columns of W are neither of length 1 "
            "nor at right angles.",
        ),
        Mistake(
            "the columns have length 1 but are not at right angles",
            lambda x, W: x @ _sloppy_basis(W) @ _sloppy_basis(W).T,
            "Where two columns point alike, their common direction is counted twice. Make them orthonormal together.",
        ),
        Mistake(
            "the singular values are still in it",
            _stretched,
            "How loud the head hears a direction is not asked, only whether it hears it at all.",
        ),
        Mistake(
            "the numbers that the head sees, not the part of the stream",
            lambda x, W: x @ W,
            "These are d_head coordinates. Bring them back into the stream, as the part of x that they come from.",
        ),
        Mistake(
            "the way back into the stream is missing",
            lambda x, W: x @ torch.linalg.pinv(W).T,
            "You have the d_head coordinates of the projection. Multiply the directions that they belong to by them.",
        ),
        Mistake(
            "nothing is lost",
            lambda x, W: x,
            "You return x as it was. A basis of the column space has d_head vectors; one of all d_model dimensions, such as "
            "the full U of a singular value decomposition, keeps everything.",
        ),
    ),
)


def check_heard_part(answer) -> Result:
    """Exercise 1.3. `answer(x, W)` returns the part of `x` that a head sees which reads `x @ W`.

    **Shapes**: `x [pos, d_model]`, `W [d_model, d_head]` of full rank, `d_head < d_model`; the result is `[pos, d_model]`:
    the orthogonal projection of each row on the column space of `W`.
    """
    return check(HEARD, answer)


# --- 1.4 a head that moves a note ----------------------------------------------------------------------------------


def _moved_spec(source: Tensor, target: Tensor) -> Tensor:
    stream = _notes(source)
    out = stream.clone()
    for pos, row in enumerate(stream):
        for old, new in zip(source, target, strict=True):
            note = torch.dot(row, old)
            out[pos] = out[pos] - note * old + note * new
    return out


def _notes(source: Tensor) -> Tensor:
    """A stream to try the head on."""
    return normal(torch.Generator().manual_seed(5), 4, source.shape[1])


def _run_mover(answer, source: Tensor, target: Tensor) -> Tensor | None:
    d_model = source.shape[1]
    matrices = built(answer(source, target), W_V=(d_model, "d_head"), W_O=("d_head", d_model))
    if matrices is None:
        return None
    W_V, W_O = matrices
    return _notes(source) + _notes(source) @ W_V @ W_O


def _draw_notes(generator: torch.Generator, step: int) -> Case:
    count = 1 + step % 3
    d_model = 2 * count + 2 + step // 3
    frame = torch.linalg.qr(normal(generator, d_model, d_model))[0]
    return {"source": frame[:count].clone(), "target": frame[count : 2 * count].clone()}


def _both(source: Tensor, target: Tensor) -> Tensor:
    return torch.cat([source, target]).T


MOVER = Exercise(
    number="1.4",
    title="a head that moves a note, by hand",
    minutes=20,
    difficulty="hard",
    read=f"{_PAGE}#who-deletes",
    spec=_moved_spec,
    draw=_draw_notes,
    observe=_run_mover,
    tolerance=1e-5,  # of matrices in float32
    names=("position", "dimension"),
    mistakes=(
        Mistake(
            "the note is copied but not erased",
            lambda source, target: (source.T, target),
            "Afterwards the stream holds the note twice. It can only be added to: what must be added to take a note away?",
        ),
        Mistake(
            "the note is erased but not written",
            lambda source, target: (source.T, -source),
            "The source directions are empty now, as they should be. The note has to arrive somewhere.",
        ),
        Mistake(
            "the note is doubled, not erased",
            lambda source, target: (source.T, target + source),
            "The note arrives at the target. But what you add along the source makes it twice as long there.",
        ),
        Mistake(
            "the signs are the wrong way round",
            lambda source, target: (source.T, source - target),
            "Now the source holds the note twice and the target its negative. Which of the two is to grow?",
        ),
        Mistake(
            "the note goes from target to source",
            lambda source, target: (target.T, source - target),
            "W_V decides what is read. Which directions hold the note?",
        ),
        Mistake(
            "source and target are exchanged",
            lambda source, target: (_both(source, target), torch.cat([target - source, source - target])),
            "What the target held before is to stay there. Read the source alone.",
        ),
        Mistake(
            "what the target held is erased",
            lambda source, target: (_both(source, target), torch.cat([target - source, -target])),
            "The note is added to what the target holds. Nothing was said about clearing the target first.",
        ),
        Mistake(
            "the head writes the whole new stream",
            lambda source, target: (
                torch.eye(source.shape[1], dtype=source.dtype),
                torch.eye(source.shape[1], dtype=source.dtype) + source.T @ (target - source),
            ),
            "The old stream is still there, and what the head writes is added to it. Write the difference only.",
            read=f"{_PAGE}#the-stream-is-a-sum",
        ),
        Mistake(
            "the notes are mixed",
            lambda source, target: (source.sum(0)[:, None], (target - source).sum(0)[None]),
            "With one note this works. With several, each needs its own column of W_V and its own row of W_O.",
        ),
    ),
)


def check_note_mover(answer) -> Result:
    """Exercise 1.4. `answer(source, target)` returns `W_V, W_O` of a head that moves notes inside the stream.

    The head looks at its own position, so the stream becomes `x + x @ W_V @ W_O`. After that, what `x` had along row `i`
    of `source` is gone from there and has been added along row `i` of `target`; everything else is as before.

    **Shapes**: `source` and `target [note, d_model]`, all rows of both orthonormal; `W_V [d_model, d_head]` and `W_O
    [d_head, d_model]` with any `d_head`.
    """
    return check(MOVER, answer)


# --- 1.5 the loss of a bigram table --------------------------------------------------------------------------------


def _bigram_spec(tokens: Tensor, W_E: Tensor, W_U: Tensor) -> Tensor:
    out = torch.zeros(len(tokens) - 1, dtype=torch.float64)
    for place in range(len(tokens) - 1):
        logits = [torch.dot(W_E[tokens[place]], W_U[:, word]) for word in range(W_U.shape[1])]
        chance = torch.exp(logits[int(tokens[place + 1])]) / sum(torch.exp(logit) for logit in logits)
        out[place] = -torch.log(chance)
    return out


def _draw_bigram(generator: torch.Generator, step: int) -> Case:
    pos, vocab, d_model = sizes(generator, step, 3, smallest=3)
    return {
        "tokens": torch.randint(vocab, (pos,), generator=generator),
        "W_E": normal(generator, vocab, d_model),
        "W_U": normal(generator, d_model, vocab),
    }


def _table(W_E: Tensor, W_U: Tensor) -> Tensor:
    return (W_E @ W_U).log_softmax(-1)


BIGRAM = Exercise(
    number="1.5",
    title="the loss of a bigram table",
    minutes=10,
    difficulty="easy",
    read=f"{_PAGE}#a-model-with-no-layers-is-a-table",
    spec=_bigram_spec,
    draw=_draw_bigram,
    names=("prediction",),
    mistakes=(
        Mistake(
            "the current token is scored instead of the next",
            lambda tokens, W_E, W_U: -_table(W_E, W_U)[tokens[:-1], tokens[:-1]],
            "The row of a token scores what comes after it. Is something shifted by one?",
        ),
        Mistake(
            "each token is scored on itself",
            lambda tokens, W_E, W_U: -_table(W_E, W_U)[tokens, tokens],
            "The row of a token scores what comes after it, so rows and columns have to be one place apart.",
        ),
        Mistake(
            "each next token is scored on itself",
            lambda tokens, W_E, W_U: -_table(W_E, W_U)[tokens[1:], tokens[1:]],
            "The targets are right. The rows have to be those of the tokens before them.",
        ),
        Mistake(
            "every token is paired with every next one",
            lambda tokens, W_E, W_U: -_table(W_E, W_U)[tokens[:-1]][:, tokens[1:]],
            "Two index tensors in one pair of brackets pick entries one by one; one after the other they pick whole rows "
            "and columns.",
        ),
        Mistake(
            "the table is read backwards",
            lambda tokens, W_E, W_U: -_table(W_E, W_U)[tokens[1:], tokens[:-1]],
            "Rows are current tokens, columns next tokens. This is how well each token explains the one before it.",
        ),
        Mistake(
            "the last token wraps around to the first",
            lambda tokens, W_E, W_U: -_table(W_E, W_U)[tokens, tokens.roll(-1)],
            "After the last token nothing is known: n tokens make n - 1 predictions.",
        ),
        Mistake(
            "the softmax runs over current tokens",
            lambda tokens, W_E, W_U: -(W_E @ W_U).log_softmax(0)[tokens[:-1], tokens[1:]],
            "For each current token the chances of all next tokens sum to 1. Which axis is that?",
        ),
        Mistake(
            "the sign is missing",
            lambda tokens, W_E, W_U: _table(W_E, W_U)[tokens[:-1], tokens[1:]],
            "A loss is never negative: it is small when the right token was likely.",
        ),
        Mistake(
            "logits are taken for log-probabilities",
            lambda tokens, W_E, W_U: -(W_E @ W_U)[tokens[:-1], tokens[1:]],
            "Scores become chances only when they are compared with those of all other tokens.",
        ),
        Mistake(
            "probabilities without the logarithm",
            lambda tokens, W_E, W_U: _table(W_E, W_U)[tokens[:-1], tokens[1:]].exp(),
            "These are the chances of the right tokens. The loss, in nats, is a logarithm away.",
        ),
        Mistake(
            "the loss is in bits",
            lambda tokens, W_E, W_U: -(W_E @ W_U).softmax(-1)[tokens[:-1], tokens[1:]].log2(),
            "The losses of this book are in nats: the natural logarithm.",
        ),
        Mistake(
            "the mean instead of one loss for each prediction",
            lambda tokens, W_E, W_U: -_table(W_E, W_U)[tokens[:-1], tokens[1:]].mean(),
            "Return the losses one by one, so that one can see where the table does badly.",
        ),
    ),
)


def check_bigram_loss(answer) -> Result:
    """Exercise 1.5. `answer(tokens, W_E, W_U)` returns the loss of each prediction of a model without layers, in nats.

    **Shapes**: `tokens [pos]`, `W_E [vocab, d_model]`, `W_U [d_model, vocab]`; the result is `[pos - 1]`. There are no
    positions and no norm: the stream is `W_E[tokens]`.
    """
    return check(BIGRAM, answer)


# --- 1.6 turn the stream -------------------------------------------------------------------------------------------


def _turned_spec(R: Tensor, W_E: Tensor, W_V: Tensor, W_O: Tensor, W_U: Tensor) -> Tensor:
    vocab, d_model = W_E.shape
    out = torch.zeros(vocab, max(vocab, d_model), 2, dtype=torch.float64)
    for token in range(vocab):
        stream = W_E[token] + ((W_E[token] @ W_V) @ W_O)
        for i in range(d_model):
            out[token, i, 0] = torch.dot(stream, R[:, i])
        for word in range(vocab):
            out[token, word, 1] = torch.dot(stream, W_U[:, word])
    return out


def _run_turned(answer, R: Tensor, W_E: Tensor, W_V: Tensor, W_O: Tensor, W_U: Tensor) -> Tensor | None:
    shapes = {"W_E": W_E.shape, "W_V": W_V.shape, "W_O": W_O.shape, "W_U": W_U.shape}
    matrices = built(answer(R, W_E, W_V, W_O, W_U), **shapes)
    if matrices is None:
        return None
    W_E, W_V, W_O, W_U = matrices
    (vocab, d_model), stream = W_E.shape, W_E + W_E @ W_V @ W_O
    out = torch.zeros(vocab, max(vocab, d_model), 2, dtype=torch.float64)
    out[:, :d_model, 0], out[:, :vocab, 1] = stream, stream @ W_U
    return out


def _draw_turned(generator: torch.Generator, step: int) -> Case:
    d_head, vocab, d_model = sorted(sizes(generator, step, 3))
    return _turned_case(generator, vocab, d_model, d_head)


def _turned_case(generator: torch.Generator, vocab: int, d_model: int, d_head: int) -> Case:
    return {
        "R": torch.linalg.qr(normal(generator, d_model, d_model))[0],
        "W_E": normal(generator, vocab, d_model),
        "W_V": normal(generator, d_model, d_head),
        "W_O": normal(generator, d_head, d_model),
        "W_U": normal(generator, d_model, vocab),
    }


TURNED = Exercise(
    number="1.6",
    title="turn the stream",
    minutes=15,
    difficulty="medium",
    read=f"{_PAGE}#no-privileged-basis",
    spec=_turned_spec,
    draw=_draw_turned,
    observe=_run_turned,
    tolerance=1e-5,  # of matrices in float32
    square=lambda generator: _turned_case(generator, 3, 3, 3),
    names=("token", "number", "observed"),
    columns=("in the stream", "in the logits"),
    mistakes=(
        Mistake(
            "nothing is turned",
            lambda R, W_E, W_V, W_O, W_U: (W_E, W_V, W_O, W_U),
            "The logits are right, but the stream is x, not x R. Start with the first that writes into it.",
        ),
        Mistake(
            "only the writers are turned",
            lambda R, W_E, W_V, W_O, W_U: (W_E @ R, W_V, W_O @ R, W_U),
            "The stream is turned, and the readers look where things used to be. How do they find them again?",
        ),
        Mistake(
            "only the readers are turned",
            lambda R, W_E, W_V, W_O, W_U: (W_E, R.T @ W_V, W_O, R.T @ W_U),
            "The readers expect a turned stream. Who puts vectors into it?",
        ),
        Mistake(
            "the readers are turned the same way as the writers",
            lambda R, W_E, W_V, W_O, W_U: (W_E @ R, R @ W_V, W_O @ R, R @ W_U),
            "A reader has to undo what happened to the stream: write down x R times the new reader. What must it be?",
        ),
        Mistake(
            "R comes from the right everywhere",
            lambda R, W_E, W_V, W_O, W_U: (W_E @ R, W_V @ R, W_O @ R, W_U @ R),
            "For a reader, the axis that belongs to the stream is the first. On which side does it meet R?",
        ),
        Mistake(
            "R comes from the left everywhere",
            lambda R, W_E, W_V, W_O, W_U: (R @ W_E, R @ W_V, R @ W_O, R @ W_U),
            "For a writer, the axis that belongs to the stream is the last. On which side does it meet R?",
        ),
        Mistake(
            "the head's output is turned back",
            lambda R, W_E, W_V, W_O, W_U: (W_E @ R, R.T @ W_V, W_O @ R.T, R.T @ W_U),
            "The head writes into the same stream as the embedding does.",
        ),
        Mistake(
            "the head is left as it was",
            lambda R, W_E, W_V, W_O, W_U: (W_E @ R, W_V, W_O, R.T @ W_U),
            "The head stands between embedding and unembedding. It reads from the turned stream and writes into it.",
        ),
        Mistake(
            "the stream is turned by the inverse of R",
            lambda R, W_E, W_V, W_O, W_U: (W_E @ R.T, R @ W_V, W_O @ R.T, R @ W_U),
            "The logits are right, so your turning is consistent. But the new stream was to be x R.",
        ),
        Mistake(
            "the head still writes in the old directions",
            lambda R, W_E, W_V, W_O, W_U: (W_E @ R, R.T @ W_V, W_O, R.T @ W_U),
            "The embedding is not the only one that writes into the stream.",
        ),
        Mistake(
            "the head still reads in the old directions",
            lambda R, W_E, W_V, W_O, W_U: (W_E @ R, W_V, W_O @ R, R.T @ W_U),
            "The unembedding is not the only one that reads from the stream.",
        ),
        Mistake(
            "the unembedding still reads in the old directions",
            lambda R, W_E, W_V, W_O, W_U: (W_E @ R, R.T @ W_V, W_O @ R, W_U),
            "The stream is right. Who reads it last?",
        ),
    ),
)


def check_turned_stream(answer) -> Result:
    """Exercise 1.6. `answer(R, W_E, W_V, W_O, W_U)` returns the four matrices of the same model in the stream `x @ R`.

    **Shapes**: `R [d_model, d_model]` orthogonal, `W_E [vocab, d_model]`, `W_V [d_model, d_head]`, `W_O [d_head, d_model]`,
    `W_U [d_model, vocab]`; the results have the same shapes. Compared are the stream, which has to be turned by `R`, and
    the logits, which have to be the same.
    """
    return check(TURNED, answer)


EXERCISES = (LOGIT, THROUGH_NORM, HEARD, MOVER, BIGRAM, TURNED)
