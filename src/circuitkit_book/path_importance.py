"""How important the paths through 0, 1, 2, ... heads are, as chapter 2 measures it."""

import pandas as pd

from circuitkit.bridge import Model
from circuitkit.checks import checked
from circuitkit.paths import BIAS, path_logits
from circuitkit.rows import Text, read_rows, require_two_positions, token_losses

__all__ = ["term_importance"]


@checked
def term_importance(model: Model, tokens: Text) -> pd.DataFrame:
    """Measure the loss with and without the paths through 0, 1, 2, ... heads.

    Parameters
    ----------
    model : a `TransformerBridge` whose logits are not capped
    tokens : a text, a list of texts of any lengths, or token ids `[pos]` or `[batch, pos]`, each with at
        least two positions

    Returns
    -------
    A DataFrame with a row for each order, the number of heads that a path passes. `kept` is the
    loss in nats for each token with only the paths of this order and lower ones, so its last entry
    is the loss of the model. `removed` is the loss without the paths of this order.

    Raises
    ------
    ValueError : as in `circuitkit.paths.path_logits`, and for a single position

    Notes
    -----
    MLPs start paths of order 0; biases are always kept. The patterns are those of the whole model,
    so this measures what paths write, not where heads attend. The losses of two orders do not add
    up. Error: as in `circuitkit.paths.path_logits`. Source: "A Mathematical Framework for
    Transformer Circuits", "Term importance analysis".

    Examples
    --------
    >>> import circuitkit as ck
    >>> term_importance(ck.load_model("two-layer"), "The house belonged to Mr. Dorling.").shape
    (3, 2)
    """
    read = read_rows(model, tokens)
    require_two_positions(read)
    paths = path_logits(model, read)
    everything = paths.sum()
    kept = paths.sum([BIAS] if BIAS in paths else [])
    rows = []
    for order in range(len(model.blocks) + 1):
        names = [name for name, path in paths.paths.items() if path.order == order and name != BIAS]
        of_order = paths.sum(names)
        kept = kept + of_order
        losses = [
            token_losses(logits, read.tokens)[read.is_text[:, 1:]].mean()
            for logits in (kept, everything - of_order)
        ]
        rows.append([loss.item() for loss in losses])
    return pd.DataFrame(rows, pd.RangeIndex(len(rows), name="order"), ["kept", "removed"])
