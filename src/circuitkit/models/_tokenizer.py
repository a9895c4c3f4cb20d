"""The byte-level BPE tokenizer that all shipped models share."""

import warnings
from typing import TYPE_CHECKING

from circuitkit._stored import stored_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS = "<|endoftext|>"


def load_tokenizer() -> "PreTrainedTokenizerFast":
    """The tokenizer of the shipped models: 2,048 entries; `<|endoftext|>` (id 0) begins every text.

    **Source**: a byte-level BPE, trained on the corpus by `tools/train/tokenizer.py`.
    """
    from transformers import PreTrainedTokenizerFast

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(stored_file("models", "tokenizer.json")),
            bos_token=BOS,
            eos_token=BOS,
            unk_token=BOS,
            pad_token=BOS,
        )
    # transformer-lens asks a tokenizer where it came from so that it can load a variant that prepends BOS; naming it
    # a local one that already does keeps it from asking the hub.
    tokenizer.init_kwargs.update(name_or_path="circuitkit", add_bos_token=True)
    return tokenizer
