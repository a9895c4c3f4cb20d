"""The shipped models with their tokenizer and text, and models from a folder or from the Hub."""

import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from circuitkit.checks import checked, require_device, require_finite
from circuitkit.data import manifest, stored, stored_file

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = [
    "CorpusStatistics",
    "checkpoints",
    "corpus_statistics",
    "heldout_rows",
    "list_models",
    "load_model",
    "model_card",
]

FIRST_TOKEN = "<|endoftext|>"


@checked
def load_model(
    name: str | Path,
    *,
    step: int | None = None,
    device: str | torch.device = "cpu",
    from_hub: bool = False,
) -> "TransformerBridge":
    """Load a model as a transformer-lens `TransformerBridge` in eval mode, with its tokenizer.

    Parameters
    ----------
    name : a shipped model (`list_models()`), or a folder that a Hugging Face model was saved to;
        with `from_hub=True`, the name of a model on the Hugging Face Hub, such as `"gpt2"`
    step : a training step of a shipped model (`checkpoints(name)`); the last one if left out
    device : where the weights go
    from_hub : download the model, or read it from the local cache of downloads

    Returns
    -------
    A bridge in float64 if that is torch's default dtype, and in float32 otherwise. The weights of a shipped
    model require no gradients. The `tokenizer` is None if the folder has no tokenizer.

    Raises
    ------
    ValueError : for an unknown name or step, a damaged shipped file, weights that are missing, have
        other sizes than the configuration says, or are NaN or infinite, and a device that does not
        exist or that this installation of torch cannot use
    FileNotFoundError : for a folder without `config.json`

    Notes
    -----
    Shipped weights were rounded when they were stored: to half precision, and the embeddings of
    earlier checkpoints to 8 bits. Without `from_hub`, nothing is downloaded. A text becomes the
    tokens that the model's own tokenizer gives, `tokenizer(text)` in transformers, with two
    exceptions: where the tokenizer puts nothing in front of a text, its opening token (`bos_token`, or
    else `eos_token`) is put there; and an `eos_token` that it puts behind a text is left out, except
    in an encoder (BERT).

    Source: `studies/edition-2/train/model.py` trained the shipped weights; transformer-lens loads
    all other models.

    Examples
    --------
    >>> model = load_model("two-layer")
    >>> model(model.to_tokens("In the beginning")).shape
    torch.Size([1, 5, 2048])
    """
    is_shipped = isinstance(name, str) and name in list_models() and not from_hub
    if step is not None and not is_shipped:
        raise ValueError(
            f"Only shipped models have checkpoints, and {str(name)!r} is none of them: "
            f"{list_models()}. Leave step out."
        )
    require_device("load_model", device)
    if is_shipped:
        model = load_shipped(str(name), step)
    elif from_hub:
        model = load_with_transformers(str(name), has_tokenizer=True)
    else:
        model = load_folder(name)
    model = model.to(device, print_details=False).eval()
    from circuitkit.first_use import remember_before_processing

    remember_before_processing(model)
    return model


def dtype_of_models() -> torch.dtype:
    """The precision in which models are loaded: float64 if it is torch's default, or else float32."""
    is_double = torch.get_default_dtype() == torch.float64
    return torch.float64 if is_double else torch.float32


def load_shipped(name: str, step: int | None) -> "TransformerBridge":
    """A shipped model on the CPU."""
    from safetensors.torch import load_file
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources import boot_native

    sizes = recorded(name)["sizes"]
    has_mlp = bool(sizes["mlp"])
    config: Any = TransformerBridgeConfig(
        d_model=sizes["d_content"] if has_mlp else sizes["d_content"] + sizes["d_pos"],
        d_head=sizes["d_head"],
        n_heads=sizes["n_heads"],
        n_layers=sizes["n_layers"],
        n_ctx=sizes["n_ctx"],
        d_vocab=sizes["d_vocab"],
        d_mlp=sizes["d_mlp"] if has_mlp else None,
        act_fn="gelu",
        attn_only=not has_mlp,
        normalization_type="LN" if has_mlp else None,
        init_weights=False,
    )
    config.without_biases = not has_mlp  # zero biases are no parts, see `parts.is_part`
    weights = unpacked(load_file(weight_file(name, step)))
    model = boot_native(
        config, tokenizer=load_tokenizer(), model_name=name, dtype=dtype_of_models()
    )
    state = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
    state |= with_mlp(weights) if has_mlp else attention_only(weights, sizes)
    model.load_state_dict(state)
    return model.requires_grad_(False)


def weight_file(name: str, step: int | None = None) -> Path:
    """The file with the weights of a shipped model at a training step (the last by default)."""
    files = recorded(name)["files"]
    chosen = checkpoints(name)[-1] if step is None else step
    if str(chosen) not in files:
        raise ValueError(
            f"{name!r} has no checkpoint at step {step!r}. It has the steps {checkpoints(name)}."
        )
    return stored_file("models", files[str(chosen)]["file"])


def unpacked(stored_weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stored weights in float32; a matrix of 8-bit integers is multiplied by its scales."""
    weights = {}
    for name, tensor in stored_weights.items():
        if not name.endswith(".scale"):
            scale = stored_weights.get(f"{name}.scale", torch.ones(()))
            weights[name] = tensor.float() * scale.float()
    return weights


def attention_only(weights: dict[str, Tensor], sizes: dict[str, Any]) -> dict[str, Tensor]:
    """The bridge's weights of a model without MLPs, whose stream is `[content, position]`.

    Positions lie in coordinates of their own. Only queries and keys read them, and no head writes
    to them, so all other matrices are filled up with zeros.
    """
    d_content, d_pos = sizes["d_content"], sizes["d_pos"]
    pad = torch.nn.functional.pad
    state = {
        "embed.weight": pad(weights["W_E"], (0, d_pos)),  # [d_vocab, d_model]
        "pos_embed.weight": pad(weights["W_pos"], (d_content, 0)),  # [n_ctx, d_model]
        "unembed.weight": pad(weights["W_U"], (0, 0, 0, d_pos)).T,  # [d_vocab, d_model]
    }
    for layer in range(sizes["n_layers"]):
        # stored [d_in, d_out]; a linear layer of torch holds the transpose
        matrices = {
            "q": weights[f"layers.{layer}.W_Q"],
            "k": weights[f"layers.{layer}.W_K"],
            "v": pad(weights[f"layers.{layer}.W_V"], (0, 0, 0, d_pos)),
            "o": pad(weights[f"layers.{layer}.W_O"], (0, d_pos)),
        }
        for name, matrix in matrices.items():
            state[f"blocks.{layer}.attn.{name}.weight"] = matrix.T
    return state


def with_mlp(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The bridge's weights of the model with MLPs; they only get other names."""
    names = {"W_E": "embed.weight", "W_pos": "pos_embed.weight", "layers.": "blocks."}
    names |= {".fc_in.": ".mlp.in.", ".fc_out.": ".mlp.out."}
    names |= {f".{side}.": f".attn.{side}." for side in "qkvo"}
    state = {}
    for stored_name, tensor in weights.items():
        bridge_name = stored_name
        for stored_part, bridge_part in names.items():
            bridge_name = bridge_name.replace(stored_part, bridge_part)
        state[bridge_name] = tensor
    state["unembed.weight"] = state.pop("W_U").T
    return state


def load_folder(folder: str | Path) -> "TransformerBridge":
    """A Hugging Face model from a folder that `save_pretrained` wrote."""
    if not Path(folder).is_dir():
        raise ValueError(
            f"There is no shipped model and no folder called {str(folder)!r}. The shipped models "
            f"are {list_models()}. For a model of the Hugging Face Hub, write "
            f"load_model({str(folder)!r}, from_hub=True)."
        )
    files = [path.name for path in Path(folder).iterdir()]
    if "config.json" not in files:
        raise FileNotFoundError(
            f"There is no config.json in {str(folder)!r}. A model is loaded from a folder that "
            "model.save_pretrained(folder) wrote."
        )
    has_tokenizer = any(
        "token" in name or name.startswith("vocab") or name.endswith(".model") for name in files
    )
    # The whole path: transformer-lens could take a short one for the name of another model.
    return load_with_transformers(str(Path(folder).absolute()), has_tokenizer)


def load_with_transformers(source: str, has_tokenizer: bool) -> "TransformerBridge":
    """A model that transformers knows, on the CPU; `source` is a folder or a name on the Hub."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformer_lens.model_bridge.sources import transformers as loading
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source)
    architecture = loading.determine_architecture_from_hf_config(config)
    model_class = loading.get_hf_model_class_for_architecture(architecture)
    model, report = model_class.from_pretrained(
        source,
        dtype=dtype_of_models(),
        attn_implementation="eager",  # the other implementations return no patterns
        ignore_mismatched_sizes=True,  # reported below
        output_loading_info=True,
    )
    require_whole(model, report, source)
    for module in model.modules():
        joint = getattr(module, "query_key_value", None)
        if joint is not None and joint.bias is None:
            # GPT-NeoX without biases: transformer-lens asserts that there are some
            joint.bias = torch.nn.Parameter(torch.zeros(joint.out_features))
    try:
        if has_tokenizer:
            return with_own_tokenizer(source, model)
        return build_bridge_from_module(
            model, architecture, hf_config=model.config, tokenizer=None, model_name=source
        )
    except Exception as problem:
        from circuitkit.first_use import first_line

        raise ValueError(
            f"transformers has loaded {source!r} ({architecture}), and transformer-lens cannot put "
            f"hooks into it: {first_line(problem)}. transformer-lens does not support all settings "
            f"of a family, so look at those in config.json{unusual_switches(config)}."
        ) from problem


def unusual_switches(config: Any) -> str:
    """The switches that differ from the usual ones of a family, as ": name=True", or ""."""
    names = [
        f"{name}={value}"
        for name, value in config.to_diff_dict().items()
        if isinstance(value, bool) and getattr(type(config), name, value) is not value
    ]
    return f": {', '.join(names)}" if names else ""


class Marks(NamedTuple):
    """What a tokenizer puts in front of a text and behind it, and the ids of its special tokens."""

    front: list[int]
    behind: list[int]
    bos: int | None
    eos: int | None

    @classmethod
    def of(cls, tokenizer: Any) -> "Marks":
        """Compare the tokens of a short text with and without special tokens."""
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = tokenizer("a")["input_ids"]
        starts = [n for n in range(len(whole)) if bare and whole[n : n + len(bare)] == bare]
        start = starts[0] if starts else len(whole)
        front, behind = whole[:start], whole[start + len(bare) :]
        return cls(front, behind, tokenizer.bos_token_id, tokenizer.eos_token_id)


def with_own_tokenizer(source: str, model: "PreTrainedModel") -> "TransformerBridge":
    """A bridge for a model of transformers, with the tokenizer of its folder."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    marks = Marks.of(tokenizer)
    # without this, transformer-lens loads it again with bos as its whole template
    tokenizer.init_kwargs["add_bos_token"] = bool(marks.front or marks.behind)
    bridge = TransformerBridge.boot_transformers(
        source, hf_model=model, tokenizer=tokenizer, device="cpu"
    )
    set_marks(bridge, marks)
    return bridge


def set_marks(bridge: Any, marks: Marks) -> None:
    """Make `bridge.to_tokens` give the tokens of the model's own tokenizer.

    transformer-lens puts the token `bos` in front of every text, takes `eos` for it where there is
    no `bos`, and invents one where there is neither. That is right only where the tokenizer itself
    puts nothing in front, and one of the two exists.
    """
    tokenizer, cfg = bridge.tokenizer, bridge.cfg
    if marks.bos is None and (marks.front or marks.eos is None):
        tokenizer.bos_token = None
    if marks.eos is None:
        tokenizer.eos_token = None
    if marks.front:
        cfg.tokenizer_prepends_bos = marks.front[0] == marks.bos
        cfg.default_prepend_bos = cfg.tokenizer_prepends_bos
    elif tokenizer.bos_token is None:
        cfg.default_prepend_bos = cfg.tokenizer_prepends_bos = False
    # in a model that reads from left to right, the text goes on behind its last token
    is_encoder = str(getattr(cfg, "attention_dir", "causal")) == "bidirectional"
    ends = marks.eos is not None and marks.behind == [marks.eos]
    cfg.tokenizer_appends_eos = ends and not is_encoder


def require_whole(model: "PreTrainedModel", report: dict[str, Any], source: str) -> None:
    """Refuse weights that transformers would replace by random numbers, and NaN or infinite ones.

    `report` is what `from_pretrained` returns with `output_loading_info=True`.
    """
    problems = {
        "lack": sorted(report["missing_keys"]),
        "have other sizes than config.json says for": sorted(
            key for key, *_ in report["mismatched_keys"]
        ),
    }
    for problem, names in problems.items():
        if names:
            raise ValueError(
                f"The weights of {source!r} {problem} {shortened(names)}. Save the whole model "
                "again with model.save_pretrained(folder)."
            )
    if report["unexpected_keys"]:
        names = shortened(sorted(report["unexpected_keys"]))
        warnings.warn(
            f"The model in {source!r} does not use these of its weights: {names}.", stacklevel=4
        )
    for name, weight in model.named_parameters():
        require_finite(weight.detach(), f"The weight {name} of {source!r}")


def shortened(names: list[str]) -> str:
    """The first three names, and how many there are beyond them."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def load_tokenizer() -> "PreTrainedTokenizerFast":
    """The tokenizer of the shipped models: 2,048 tokens; `<|endoftext|>` (id 0) is the first.

    It is a byte-level BPE, trained on the corpus by `studies/edition-2/train/tokenizer.py`.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(stored_file("models", "tokenizer.json")),
        bos_token=FIRST_TOKEN,
        eos_token=FIRST_TOKEN,
        unk_token=FIRST_TOKEN,
        pad_token=FIRST_TOKEN,
    )
    # transformer-lens would otherwise look on the Hub for a variant that adds the first token
    tokenizer.init_kwargs.update(name_or_path="circuitkit", add_bos_token=True)
    return tokenizer


def list_models() -> list[str]:
    """List the names of the shipped models, smallest first.

    Notes
    -----
    Source: `manifest.json`, written by `studies/edition-2/train/pack.py`.

    Examples
    --------
    >>> list_models()
    ['zero-layer', 'one-layer', 'two-layer', 'two-layer-mlp']
    """
    return list(manifest("models")["models"])


@checked
def model_card(name: str) -> dict[str, Any]:
    """Return what was recorded of a shipped model when it was stored.

    Parameters
    ----------
    name : a shipped model

    Returns
    -------
    A dictionary: `"sizes"`, `"training"`, `"measured"` (losses in nats a token) and `"files"` of
    the model; the held-out losses of unigram, bigram and trigram models (`"baselines"`); and the
    texts that all of them were fitted on (`"corpus"`), with title, author and why each is free.

    Raises
    ------
    ValueError : for an unknown name

    Notes
    -----
    Source: `studies/edition-2/train`: `model.py`, `pack.py` and `corpus.py` there, and
    `baselines.py` for the n-gram models, which are interpolated (Kneser and Ney 1995).
    """
    losses = manifest("models")["baselines"]
    return {
        **recorded(name),
        "baselines": {kind: losses[kind] for kind in ("unigram", "bigram", "trigram")},
        "corpus": stored("models", "corpus-provenance.json")["files"],
    }


def recorded(name: str) -> dict[str, Any]:
    """What the manifest records of a shipped model."""
    models = manifest("models")["models"]
    if name not in models:
        raise ValueError(f"There is no shipped model {name!r}. There are {list(models)}.")
    return models[name]


@checked
def checkpoints(name: str) -> list[int]:
    """List the training steps at which a shipped model can be loaded; the last is the default.

    Parameters
    ----------
    name : a shipped model

    Notes
    -----
    Source: `manifest.json`, written by `studies/edition-2/train/pack.py`.
    """
    return [int(step) for step in recorded(name)["files"]]


class CorpusStatistics(NamedTuple):
    """Counts over the tokens that the shipped models were trained on.

    `unigram` `[d_vocab]` counts each token. `bigram` `[d_vocab, d_vocab]` counts how often the
    token of the column follows the token of the row. `<|endoftext|>` begins each document.
    """

    unigram: Int[Tensor, " d_vocab"]
    bigram: Int[Tensor, "d_vocab d_vocab"]


def corpus_statistics() -> CorpusStatistics:
    """Return how often each token and each pair of neighbours occurs in the training text.

    Notes
    -----
    Source: counted by `studies/edition-2/train/pack.py`.
    """
    table = stored("models", "statistics.safetensors")
    unigram = table["unigram"].long()
    # stored as 16-bit integers with a sign; & 0xFFFF takes the sign away
    n_successors = table["successors"].long() & 0xFFFF
    rows = torch.repeat_interleave(torch.arange(len(unigram)), n_successors)
    columns = table["columns"].long() & 0xFFFF
    bigram = torch.zeros(len(unigram), len(unigram), dtype=torch.long)
    bigram[rows, columns] = table["counts"].long() & 0xFFFF
    return CorpusStatistics(unigram, bigram)


def heldout_text() -> list[dict[str, str]]:
    """Passages that no shipped model was trained on, each with its `"file"` and `"text"`."""
    return stored("models", "heldout.jsonl")


@cache
def heldout_tokens() -> Int[Tensor, " token"]:
    """The held-out text as token ids, with `<|endoftext|>` before each passage."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(stored_file("models", "tokenizer.json")))
    passages = tokenizer.encode_batch([passage["text"] for passage in heldout_text()])
    return torch.tensor([token for passage in passages for token in [0, *passage.ids]])


@checked
def heldout_rows(n: int, n_ctx: int = 256, *, seed: int = 0) -> Int[Tensor, "row pos"]:
    """Return rows of held-out text from random places, each after `<|endoftext|>` (id 0).

    Parameters
    ----------
    n : number of rows
    n_ctx : tokens in a row, the first token included
    seed : seed of the random places

    Returns
    -------
    Token ids `[n, n_ctx]`.

    Raises
    ------
    ValueError : for rows of fewer than 2 tokens, or longer than the held-out text

    Notes
    -----
    Source: 1 of 33 pieces of the corpus, held out by `studies/edition-2/train/corpus.py`.
    """
    tokens = heldout_tokens()
    if n < 1 or not 2 <= n_ctx < len(tokens):
        raise ValueError(
            f"heldout_rows was given n={n} and n_ctx={n_ctx}. There must be at least one row of "
            f"at least 2 and fewer than {len(tokens)} tokens."
        )
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(tokens) - n_ctx, (n,), generator=generator)
    # the id 0 also pads rows: none has a second one at its beginning, or one at its end
    starts += (tokens[starts] == 0).long()
    starts -= ((tokens[starts + n_ctx - 2] == 0) & (starts > 0)).long()
    rows = tokens[starts[:, None] + torch.arange(n_ctx - 1)]  # [row, pos - 1]
    return torch.cat([torch.zeros(n, 1, dtype=torch.long), rows], dim=1)
