"""A mystery for each student: a model with a planted circuit, made from a secret and her name."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit import lab
from circuitkit_book.planted import WIRES, Planted, planted_model

KEY = "secret.key"
"""A file in the folder of all mysteries: what `key_of` gives for their secret."""
MISTAKES = {
    "no_wire": "What is written is no wire, such as `L0H1->L1H2.K`.",
    "too_many_wires": "The circuit is named, and wires that are not needed, too.",
    "wrong_side": "The two heads are right, and the side (Q, K or V) is not.",
    "answer_stays": "Without the named wires the model still predicts the answer.",
}
"""The named mistakes, with what a student is told."""
WEIGHTS = ("W_E", "W_pos", "W_U", "W_Q", "W_K", "W_V", "W_O")
FORBIDDEN = re.compile(r'[/\\:*?"<>|\0]|^\.')


def mystery_of(student: str, secret: str) -> Planted:
    """Return the model of one student, in which exactly one wire of 48 carries the answer."""
    return planted_model(text_of(plain(student), secret))


def plain(name: str) -> str:
    """A name without spaces around it, with its accents in the composed form: file systems differ in both."""
    return unicodedata.normalize("NFC", name).strip()


def text_of(student: str, secret: str) -> str:
    """Return the first of the student's texts whose model is simple and has one right answer."""
    number = 0
    while not is_right_size(planted_model(f"{secret}, {student}, {number}")):
        number += 1
    return f"{secret}, {student}, {number}"


def is_right_size(planted: Planted) -> bool:
    """Return whether one cut is enough, and no other one."""
    return planted.kind == "simple" and len(planted.answers()) == 1


def write_mysteries(students: Iterable[str], secret: str, out: Path) -> list[Path]:
    """Write a folder for each student, with her model as a page of the lab and as weights.

    `mystery.html` opens in a browser, and `open_mystery` reads `mystery.safetensors`. Neither holds what is planted. A student
    writes the wire that she found into `mystery.txt`, for example `L0H1->L1H2.K`, and hands it in with her answers.

    Parameters
    ----------
    students : names, each of which becomes the name of a folder
    secret : any text that students do not know; `grade` needs the same one
    out : the folder to write to, which is created

    Raises
    ------
    ValueError : a name is empty, is given twice, or cannot be the name of a folder; or the secret is empty

    Source: this book.
    """
    names = [plain(name) for name in students]
    require_secret(secret)
    if (out / KEY).is_file():
        require_same_secret(out, secret)
    for name in names:
        if not name or FORBIDDEN.search(name):
            raise ValueError(
                f'{name!r} cannot be the name of a folder. Write it without / \\ : * ? " < > | and '
                "without a full stop at its beginning."
            )
        if names.count(name) > 1:
            raise ValueError(f"The name {name!r} is given twice. Give every student another name.")
    folders = []
    out.mkdir(parents=True, exist_ok=True)
    (out / KEY).write_text(key_of(secret) + "\n", "utf-8")
    for name in names:
        planted = mystery_of(name, secret)
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        tokens = torch.tensor([planted.tokens])
        lab(planted.model(), tokens, title="A mystery").save(folder / "mystery.html")
        tensors = {key: getattr(planted, key).astype(np.float32) for key in WEIGHTS}
        tensors["tokens"] = np.array(planted.tokens)
        tensors["answer"] = np.array(planted.answer)
        (folder / "mystery.safetensors").write_bytes(save(tensors))
        folders.append(folder)
    return folders


def require_secret(secret: str) -> None:
    """Raise an error for an empty secret."""
    if not secret:
        raise ValueError("The secret is empty. Give a text that students do not know.")


def key_of(secret: str) -> str:
    """What tells one secret from another without giving it away."""
    return hashlib.scrypt(secret.encode(), salt=b"circuitkit", n=2**14, r=8, p=1, dklen=16).hex()


def require_same_secret(folder: Path, secret: str) -> None:
    """Raise an error if the mysteries of a folder were made with another secret.

    Raises
    ------
    ValueError : they were, or the folder has no mysteries
    """
    path = folder / KEY
    if not path.is_file():
        raise ValueError(
            f"{str(folder)!r} has no {KEY}. Give the folder that `python -m circuitkit_book mysteries` wrote."
        )
    if path.read_text("utf-8").strip() != key_of(secret):
        raise ValueError(
            f"The mysteries in {str(folder)!r} were made with another secret. Give the secret with which they "
            "were made, or another folder."
        )


def open_mystery(path: str | Path) -> tuple[TransformerBridge, Tensor]:
    """Read the weights of a mystery.

    Parameters
    ----------
    path : `mystery.safetensors`

    Returns
    -------
    The model, and its text `[1, pos]`.

    Raises
    ------
    ValueError : the file is missing, or is no mystery

    Source: this book.
    """
    try:
        with safe_open(path, "numpy") as file:
            read = {key: file.get_tensor(key) for key in (*WEIGHTS, "tokens", "answer")}
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{str(path)!r} is no mystery ({error}). Give the file mystery.safetensors that your instructor gave you."
        ) from error
    weights = [read[key].astype(np.float64) for key in WEIGHTS]
    planted = Planted("", "", "", read["tokens"].tolist(), int(read["answer"]), [], *weights)
    return planted.model(), torch.tensor([planted.tokens])


def judge_mystery(student: str, secret: str, line: str) -> tuple[str, str, str]:
    """Return outcome, mistake and note for what a student wrote about her mystery.

    It is accepted if it names the one wire whose cut takes the answer away.
    """
    if not line:
        return "no answer", "", ""
    text = re.sub(r"\s*->\s*", "->", line.upper())
    words = [word for word in re.split(r"[\s,;]+|\bAND\b", text) if word]
    if not words or not set(words) <= set(WIRES):
        return "not accepted", "no_wire", f"{line[:60]!r}: {MISTAKES['no_wire']}"
    named = frozenset(words)
    right = mystery_of(student, secret).answers()
    if named in right:
        return "accepted", "", ""
    if any(smaller < named for smaller in right):
        return (
            "not accepted",
            "too_many_wires",
            "It names the circuit and wires that are not needed.",
        )
    if any(same_heads(named, answer) for answer in right):
        return "not accepted", "wrong_side", "The heads are right; the side (Q, K or V) is not."
    return (
        "not accepted",
        "answer_stays",
        "Without these wires the model still predicts the answer.",
    )


def same_heads(some: frozenset[str], others: frozenset[str]) -> bool:
    """Return whether two sets of wires join the same heads."""
    return {wire[:-2] for wire in some} == {wire[:-2] for wire in others}
