"""Shipped models, their checkpoints, local folders and models on the Hugging Face hub, through one function; what it loads
refuses in words what it cannot take: text or rows too long, token ids of another vocabulary."""

import difflib
import re
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import getproxies, proxy_bypass

import torch
from torch import Tensor

from circuitkit import _stored
from circuitkit._contract import Device, Integer, Name, Natural, given, must, public, sizes
from circuitkit._state import require_finite
from circuitkit._stored import stored_file

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast


def manifest() -> dict[str, Any]:
    """What the packing script recorded: models, their files, hashes and training records."""
    return _stored.manifest("models")


def list_models() -> list[str]:
    """Names of the shipped models, smallest first; each can be given to `load_model`.

    **Source**: `manifest.json`, written by `studies/edition-2/train/pack.py`.
    """
    return list(manifest()["models"])


@public
def model_card(name: str) -> dict[str, Any]:
    """Sizes, training record and held-out losses (nats a token) of a shipped model, as recorded when it was packed.

    **Source**: `manifest.json`, written by `studies/edition-2/train/model.py` and `studies/edition-2/train/pack.py`.
    """
    models = manifest()["models"]
    if name not in models:
        raise unknown_model(name)
    return models[name]


def baselines() -> dict[str, float]:
    """Held-out loss in nats a token of interpolated Kneser-Ney unigram, bigram and trigram models of the same corpus.

    **Source**: Kneser and Ney 1995; fitted by `studies/edition-2/train/baselines.py`.
    """
    return {name: manifest()["baselines"][name] for name in ("unigram", "bigram", "trigram")}


@public
def checkpoints(name: str) -> list[int]:
    """Training steps of a shipped model that `load_model(name, step=...)` can load, in order; the last is the model.

    **Source**: `manifest.json`, written by `studies/edition-2/train/pack.py`.
    """
    return [int(step) for step in model_card(name)["files"]]


def unknown_model(name: str) -> ValueError:
    """The error for a name that is neither shipped nor known to transformer-lens."""
    close = difflib.get_close_matches(name, list_models(), n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    return ValueError(
        f"no model is called {name!r}.{meant} Expected a shipped model, one of {list_models()}, "
        "or the name of a model on the Hugging Face hub, such as 'gpt2' or 'owner/model'."
    )


def weight_file(name: str, step: int | None) -> Path:
    """The verified file of a shipped model at a step (the last one by default)."""
    files = model_card(name)["files"]
    key = str(checkpoints(name)[-1] if step is None else step)
    if key not in files:
        raise ValueError(
            f"{name!r} has no checkpoint at step {step!r}; expected one of {checkpoints(name)} "
            "(or leave step out for the trained model)."
        )
    return _stored.stored_file("models", files[key]["file"])


def config(sizes: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `TransformerBridgeConfig` for a shipped model."""
    mlp = bool(sizes["mlp"])
    return {
        "d_model": sizes["d_content"] if mlp else sizes["d_content"] + sizes["d_pos"],
        "d_head": sizes["d_head"],
        "n_heads": sizes["n_heads"],
        "n_layers": sizes["n_layers"],
        "n_ctx": sizes["n_ctx"],
        "d_vocab": sizes["d_vocab"],
        "d_mlp": sizes["d_mlp"] if mlp else None,
        "act_fn": "gelu",
        "attn_only": not mlp,
        "normalization_type": "LN" if mlp else None,
        "init_weights": False,
        "seed": 0,
    }


def unpacked(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stored weights as float32; a matrix in 8 bits is multiplied by the scales stored beside it."""
    full = {name: tensor.float() for name, tensor in stored.items() if not name.endswith(".scale")}
    for name, tensor in stored.items():
        if name.endswith(".scale"):
            full[name.removesuffix(".scale")] *= tensor.float()
    return full


def attention_only(stored: dict[str, Tensor], sizes: dict[str, Any]) -> dict[str, Tensor]:
    """Bridge weights of a model whose positions live in a subspace of their own: the stream is `[content, position]`.

    Embeddings are zero on the other's dimensions; values, outputs and unembedding know content only. So positions reach
    queries and keys and nothing else, exactly.
    """
    d, p = sizes["d_content"], sizes["d_pos"]
    weight = unpacked(stored)
    pad = torch.nn.functional.pad
    out = {
        "embed.weight": pad(weight["W_E"], (0, p)),
        "pos_embed.weight": pad(weight["W_pos"], (d, 0)),
        "unembed.weight": pad(weight["W_U"], (0, 0, 0, p)).T,
    }
    for layer in range(sizes["n_layers"]):
        to, of = f"blocks.{layer}.attn.", f"layers.{layer}.W_"
        out[to + "q.weight"] = weight[of + "Q"].T
        out[to + "k.weight"] = weight[of + "K"].T
        out[to + "v.weight"] = pad(weight[of + "V"], (0, 0, 0, p)).T
        out[to + "o.weight"] = pad(weight[of + "O"], (0, p)).T
        out |= {f"{to}{name}.bias": torch.zeros(len(out[f"{to}{name}.weight"])) for name in "qkvo"}
    out["unembed.bias"] = torch.zeros(sizes["d_vocab"])
    return {name: tensor.contiguous() for name, tensor in out.items()}


def with_mlp(stored: dict[str, Tensor], sizes: dict[str, Any]) -> dict[str, Tensor]:
    """Bridge weights of the pre-LayerNorm model with MLPs, whose parts only change their names."""
    weight = unpacked(stored)
    out = {
        "embed.weight": weight["W_E"],
        "pos_embed.weight": weight["W_pos"],
        "unembed.weight": weight["W_U"].T.contiguous(),
        "unembed.bias": torch.zeros(sizes["d_vocab"]),
        "ln_final.weight": weight["ln_final.weight"],
        "ln_final.bias": weight["ln_final.bias"],
    }
    places = {
        "ln1": "ln1",
        "ln2": "ln2",
        "q": "attn.q",
        "k": "attn.k",
        "v": "attn.v",
        "o": "attn.o",
    }
    places |= {"fc_in": "mlp.in", "fc_out": "mlp.out"}
    for layer in range(sizes["n_layers"]):
        for stored_name, bridge_name in places.items():
            for part in ("weight", "bias"):
                out[f"blocks.{layer}.{bridge_name}.{part}"] = weight[
                    f"layers.{layer}.{stored_name}.{part}"
                ]
    return out


def boot_from_hub(name: str, device: Any = None) -> "TransformerBridge":
    """A `TransformerBridge` of a local folder, or of a model on the hub (download or cache)."""
    from transformer_lens.model_bridge import TransformerBridge

    path = Path(name)
    if path.is_dir():
        return _boot_folder(path, device)
    if (
        path.is_absolute()
        or name.startswith((".", "~"))
        or path.exists()
        or (len(path.parts) > 1 and path.parent.is_dir())
    ):
        what = f"{name!r} is a file" if path.exists() else f"there is no folder {name!r}"
        raise FileNotFoundError(
            f"{what}; expected a folder that a model was saved to, with its config.json. Check the path "
            "(a leading ~ is not expanded), or give a shipped model's name: "
            + ", ".join(list_models())
            + "."
        )
    official = _official_name(name)
    if official is None:
        raise unknown_model(name)
    if not _cached(official) and not _reachable():
        raise _no_network(name)
    try:
        with _all_weights(name):
            return TransformerBridge.boot_transformers(official, device=device)
    except OSError as error:
        if not _reachable():
            raise _no_network(name) from error
        raise FileNotFoundError(
            f"{name!r} could not be loaded from the Hugging Face hub, which was reached but answered: "
            f"{str(error).strip().splitlines()[0]} Expected the name of a public model with weights, such as 'gpt2'; "
            f"check its spelling, or log in with `hf auth login` if it is gated. Shipped models: {list_models()}."
        ) from error


def as_name(name: str | Path) -> str:
    """A path as a name: one that is called like a shipped model is a folder all the same."""
    return str(name.absolute() if isinstance(name, Path) and str(name) in list_models() else name)


def _boot_folder(folder: Path, device: Any) -> "TransformerBridge":
    """What `save_pretrained` wrote, whole: weights that are missing, damaged or not finite are refused."""
    from transformer_lens.model_bridge import TransformerBridge

    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"there is no config.json in {str(folder)!r}; expected what model.save_pretrained(folder) writes: config.json and the weights. Save the model there."
        )
    silent = _silent(folder)
    try:
        with _all_weights(
            str(folder)
        ):  # by its whole path: a short one may be another model's name to transformer-lens
            bridge = TransformerBridge.boot_transformers(
                str(folder.absolute()),
                device=device,
                tokenizer=load_tokenizer() if silent else None,
            )
    except _Incomplete:
        raise
    except Exception as problem:
        said = " ".join(re.sub(r"\x1b\[[\d;]*m", "", str(problem)).split())[:300].rstrip(". ")
        kind = FileNotFoundError if isinstance(problem, OSError) else ValueError
        what = "model" if silent or _tokenizer_is_read(folder) else "tokenizer"
        raise kind(
            f"the {what} in {str(folder)!r} could not be read: {type(problem).__name__}: {said}. Expected what {what}.save_pretrained(folder) writes, whole, and of a kind that transformer-lens knows. Look at config.json, or save it again."
        ) from problem
    if silent:
        bridge.tokenizer = None
    return bridge


def _silent(folder: Path) -> bool:
    """Whether a folder has no tokenizer; transformers would make up one that knows no token."""
    return not any(
        place.match(kind)
        for place in folder.iterdir()
        for kind in ("*token*", "vocab*", "*.model", "merges.txt")
    )


def _tokenizer_is_read(folder: Path) -> bool:
    """Whether it is not the tokenizer that is at fault."""
    from transformers import AutoConfig, AutoTokenizer

    for one in (AutoConfig, AutoTokenizer):
        try:
            one.from_pretrained(folder)
        except Exception:
            return one is AutoConfig
    return True


class _Incomplete(ValueError):
    """A model some of whose weights would be random, or cannot be put to use."""


@contextmanager
def _all_weights(name: str) -> Iterator[None]:
    """Inside, transformers loads a model with all its weights or not at all; by itself it draws those that are missing."""
    from transformers import PreTrainedModel

    load = vars(PreTrainedModel)["from_pretrained"]

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        model, told = load.__func__(
            cls, *args, **{**kwargs, "output_loading_info": True, "ignore_mismatched_sizes": True}
        )
        if other := sorted(told["mismatched_keys"]):
            key, stored, wanted = other[0]
            raise _Incomplete(
                f"the weights of {name!r} have other sizes than its config.json says, {key} for instance {tuple(stored)}, not {tuple(wanted)}; expected both from one model. Save the whole model again."
            )
        if unread := sorted(told["unexpected_keys"]):
            more = f" and {len(unread) - 3} more" if len(unread) > 3 else ""
            warnings.warn(
                f"the weights of {name!r} hold {', '.join(unread[:3])}{more}, which a model of its config.json does not read: is it the right one?",
                stacklevel=2,
            )
        if missing := sorted(told["missing_keys"]):
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise _Incomplete(
                f"the weights of {name!r} lack {', '.join(missing[:3])}{more}; expected all, because transformers would put random numbers in their place. Save the whole model again, with the class that its config.json names."
            )
        return (model, told) if kwargs.get("output_loading_info") else model

    setattr(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))  # noqa: B010  what is in place is no method of ours
    try:
        yield
    finally:
        setattr(PreTrainedModel, "from_pretrained", load)  # noqa: B010


def boot_layers(folder: str, layers: Sequence[int], device: Any = None) -> "TransformerBridge":
    """Some layers of a model in a folder, between its embedding and unembedding; of its safetensors nothing else is read."""
    import transformers
    from safetensors import safe_open
    from transformer_lens.model_bridge import TransformerBridge

    config: Any = transformers.AutoConfig.from_pretrained(folder)
    place = {layer: str(i) for i, layer in enumerate(layers)}
    if max(layers) >= config.num_hidden_layers:
        raise ValueError(
            f"layers={tuple(layers)}; expected numbers below {config.num_hidden_layers}, because the model in {folder!r} has no more layers"
        )
    changes: dict[str, Any] = {"num_hidden_layers": len(layers)}
    if getattr(config, "layer_types", None):
        changes["layer_types"] = [config.layer_types[layer] for layer in layers]
    for name, value in changes.items():
        setattr(config, name, value)
    state, number = {}, re.compile(r"(?<=\.)\d+(?=\.)")
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, framework="pt", device="cpu") as stored:
            for name in stored.keys():  # noqa: SIM118  a file, not a dict
                found = number.search(name)
                if found is None or int(found[0]) in place:
                    state[
                        name if found is None else number.sub(place[int(found[0])], name, count=1)
                    ] = stored.get_tensor(name)
    if not state:
        raise FileNotFoundError(
            f"there is no .safetensors file in {folder!r}; layers are read one by one from such files alone. Save the model with save_pretrained(folder)."
        )
    with _all_weights(folder):
        model: Any = getattr(transformers, config.architectures[0]).from_pretrained(
            None, config=config, state_dict=state, attn_implementation="eager", dtype="auto"
        )
    model = (
        model.requires_grad_(False) if device is None else model.requires_grad_(False).to(device)
    )
    silent = _silent(Path(folder))
    tokenizer = load_tokenizer() if silent else None
    bridge = TransformerBridge.boot_transformers(
        str(Path(folder).absolute()),
        hf_config_overrides=changes,
        hf_model=model,
        dtype=model.dtype,
        device=device,
        tokenizer=tokenizer,
    )
    if silent:
        bridge.tokenizer = None
    return bridge


def _no_network(name: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"{name!r} is a model on the Hugging Face hub: it is not in this machine's cache and the hub cannot be reached. "
        f"Expected internet access, a cached copy, or a path to a local folder. Shipped models need none: {list_models()}."
    )


def _official_name(name: str) -> str | None:
    """The hub's name for `name`, or `None` when nobody knows it."""
    from transformer_lens.supported_models import MODEL_ALIASES, OFFICIAL_MODEL_NAMES

    if name in OFFICIAL_MODEL_NAMES or ("/" in name and " " not in name):
        return name
    return next((official for official, aliases in MODEL_ALIASES.items() if name in aliases), None)


def _cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _reachable(seconds: float = 3.0) -> bool:
    """Whether the hub's host (or the proxy set for it) answers; saves the half minute its client retries first."""
    from huggingface_hub import constants

    url = urlparse(constants.ENDPOINT)
    proxy = getproxies().get(url.scheme)
    if proxy and not proxy_bypass(url.hostname or ""):
        url = urlparse(proxy if "//" in proxy else f"//{proxy}")
    try:
        with socket.create_connection((url.hostname, url.port or 443), timeout=seconds):
            return True
    except OSError:
        return False


BOS = "<|endoftext|>"


@public
@must(
    lambda step, name: (
        str(name) in list_models()
        or f"no step: only shipped models have checkpoints: {list_models()}. Leave step out"
    )
)
@must(
    lambda layers, name: (
        len(layers) == len({*layers}) > 0
        and Path(name).is_dir()
        or "left out, or numbers of layers, each once, of a model in a folder: other models are small"
    )
)
def load_model(
    name: Name | Path,
    *,
    step: Integer | None = None,
    layers: Sequence[Natural] | None = None,
    device: Device | None = None,
) -> "TransformerBridge":
    """A model as a transformer-lens `TransformerBridge` in eval mode, with its tokenizer.

    `name` is a shipped model (`list_models()`), a folder with a Hugging Face model, or a name on the hub such as `"gpt2"`.
    Of a folder all weights must be there and finite; one without tokenizer files gives a model whose `tokenizer` is None.
    `step` picks a training checkpoint of a shipped model (`checkpoints(name)`); `device` is any torch device. Where a folder's
    weights do not fit, `layers=[7]` reads that layer alone from its safetensors, with embedding and unembedding, as stored; it
    comes as a model of its own, and its heads count from layer 0. Shipped weights
    are float32 values that were rounded when stored (half precision; embeddings of earlier checkpoints 8 bits), their sha256
    is verified, nothing touches the network, and they require no gradients. Raises `ValueError` for an unknown name or step
    or a damaged file, `FileNotFoundError` for a missing one or no network. **Source**: shipped weights were trained by
    `studies/edition-2/train/model.py`; others are read by transformer-lens.
    """
    name = as_name(name)
    if name not in list_models():
        found = (
            boot_from_hub(name, device) if layers is None else boot_layers(name, layers, device)
        ).eval()
        require_finite(found)
        guard_input(found, name)
        return found
    path, sizes = weight_file(name, step), model_card(name)["sizes"]
    from safetensors.torch import load_file
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources import boot_native

    model = boot_native(TransformerBridgeConfig(**config(sizes)), tokenizer=load_tokenizer())
    model.cfg.model_name = name
    model.load_state_dict(
        (with_mlp if sizes["mlp"] else attention_only)(load_file(path), sizes), strict=True
    )
    guard_input(model, name)
    model.requires_grad_(False)
    if device is not None:
        model.to(device)
    return model.eval()


def guard_input(model: Any, name: str) -> None:
    """Make `model` refuse, in words, what does not fit it; nothing is cut or filled up silently.

    transformer-lens cuts long text at the context unless told otherwise; here only `truncate=True` does. It fills texts of
    several lengths up with a token that everything would count; here only `padding_side=` does. Token ids are
    checked on the wrapped model, since `run_with_cache` and its like do not go through the bridge's own call.
    """
    model.__dict__["to_tokens"] = partial(_to_tokens, model, name)
    model.original_model.register_forward_pre_hook(
        partial(_check_call, name, sizes(model)), with_kwargs=True
    )


def _to_tokens(
    model: Any, name: str, input: Any, *args: Any, truncate: bool = False, **kwargs: Any
) -> torch.Tensor:
    texts = [input] if isinstance(input, str) else input
    if not (
        texts and isinstance(texts, (list, tuple)) and all(isinstance(one, str) for one in texts)
    ) or (input == "" and kwargs.get("prepend_bos") is False):
        raise ValueError(
            f"to_tokens got {given('input', input)}; expected some text, or a list of texts of one length in tokens."
        )
    if model.tokenizer is None:
        raise ValueError(
            f"{name!r} has no tokenizer; expected ids, torch.tensor([[5, 7, 5]]), or a folder with a tokenizer: tokenizer.save_pretrained(folder)."
        )
    tokens = type(model).to_tokens(model, input, *args, truncate=truncate, **kwargs)
    if isinstance(input, (list, tuple)) and "padding_side" not in kwargs:
        lengths = [
            type(model).to_tokens(model, one, *args, truncate=truncate, **kwargs).shape[-1]
            for one in input
        ]
        if len({*lengths}) > 1:
            raise ValueError(
                f"the texts have {', '.join(map(str, lengths[:8]))} tokens; expected one length, because the shorter would be filled up with "
                f"{model.tokenizer.pad_token!r}, which every measure would count. Give them one at a time, or say padding_side='right' if that is meant."
            )
    _check_length(tokens, name, sizes(model)[1])
    return tokens


def _check_call(name: str, known: tuple[int, int], model: Any, args: tuple, kwargs: dict) -> None:
    found = args[0] if args else kwargs.get("input_ids")
    if not isinstance(found, torch.Tensor) or found.is_floating_point():
        return
    d_vocab, n_ctx = known
    _check_length(found, name, n_ctx)
    if found.numel() and (int(found.min()) < 0 or int(found.max()) >= d_vocab):
        raise ValueError(
            f"token ids run from {int(found.min())} to {int(found.max())}, but {name!r} has ids 0 to {d_vocab - 1}. "
            "Make tokens with model.to_tokens(text); ids of another tokenizer do not fit."
        )


def _check_length(tokens: torch.Tensor, name: str, n_ctx: int) -> None:
    if tokens.shape[-1] > n_ctx:
        raise ValueError(
            f"the input has {tokens.shape[-1]} tokens, but {name!r} reads at most {n_ctx} (n_ctx), counting the "
            f"token that opens a text, if there is one. Cut it: model.to_tokens(text, truncate=True), or tokens[:, :{n_ctx}]."
        )


def load_tokenizer() -> "PreTrainedTokenizerFast":
    """The tokenizer of the shipped models: 2,048 entries; `<|endoftext|>` (id 0) begins every text.

    **Source**: a byte-level BPE, trained on the corpus by `studies/edition-2/train/tokenizer.py`.
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
