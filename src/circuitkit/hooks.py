"""The hooks of a run, and the rules for those that a user has put on the model.

At a hook point, the changes of the run come first, a user's hooks come next, and the recording comes
last. A user's hook raises an error where what it changes would be wrong or lost.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from circuitkit.bridge import Model, submodules, torch_hooks
from circuitkit.first_use import is_idle
from circuitkit.intervention import CutRun
from circuitkit.parts import Recording
from circuitkit.reading import converted_neurons


@contextmanager
def hooked(
    cut_run: CutRun, points: dict[str, HookPoint], recorded: Iterable[str]
) -> Iterator[None]:
    """Inside, hooks of the model make the changes of `cut_run`, and record values.

    At each hook point, the changes come first, a user's own hooks come next, and the recording
    comes last. So users see the changed values, and what they change is recorded.
    """
    added, listeners = [], []
    guarded = guard(cut_run, points)
    try:
        for name, hook_fn in cut_run.hooks().items():
            added.append((points[name], points[name].add_hook(hook_fn, prepend=True)))
        for name in recorded:
            added.append((points[name], points[name].add_hook(cut_run.recording.record)))
        for layer, block in enumerate(cut_run.model.blocks):
            if cut_run.cuts.readers and "attn" in submodules(block):
                keep = partial(cut_run.keep_arguments, layer)
                listeners.append(block.attn.register_forward_pre_hook(keep, with_kwargs=True))
        yield
        require_all_acted(added, cut_run.recording)
    finally:
        # a user's hook may have removed these hooks, or itself, during the run
        for point, handle in added:
            handle.hook.remove()
            if handle in point.fwd_hooks:
                point.fwd_hooks.remove(handle)
        for listener in listeners:
            listener.remove()
        for hooks, number, hook_fn in guarded:
            if number in hooks:
                hooks[number] = hook_fn


def require_all_acted(added: list[tuple[HookPoint, Any]], recording: Recording) -> None:
    """Raise a `ValueError` if a hook of a run was removed before it could act."""
    for point, handle in added:
        has_run = str(point.name) in recording.values
        if handle not in point.fwd_hooks and not has_run:
            raise ValueError(
                f"The hooks of this run at {point.name} were removed before the model came there, "
                "so the run would lack a cut or a value. Call model.reset_hooks() after the run, "
                "not in a hook."
            )


def guard(cut_run: CutRun, points: dict[str, HookPoint]) -> list[tuple[dict, int, Callable]]:
    """Let a user's hook raise an error if it changes a value that would then be wrong.

    Where the run puts in values, the hook has acted on them already. Where a layer is computed a
    second time, a hook is passed over, unless it is permanent and acts inside of the layer. The
    result lists every hook that was exchanged: the dictionary of torch that holds it, its key
    there, and the hook as it was. Where the model reads nothing from a hook, no hook may change it.
    """
    unique = list(dict.fromkeys(points.values()))  # a hook has several names
    for handle in (handle for point in unique for handle in point.fwd_hooks):
        owner = getattr(handle.user_hook, "__self__", None)
        if isinstance(owner, CutRun | Recording) and not handle.is_permanent:
            raise ValueError(
                "Another run of this model is under way, in a thread or around a hook, and "
                "both would change the same hooks. Run the model once at a time."
            )
    changed = cut_run.hooks()
    has_neurons = any(name.endswith("mlp.out.hook_in") for name in changed)
    is_computed_again = bool(cut_run.cuts.readers) or has_neurons
    changed_points = {points[name] for name in changed}
    guarded = []
    for point in unique:
        place = str(point.name)
        is_shown = bool(point.fwd_hooks and SHOWN.fullmatch(place)) and is_idle(
            cut_run.model, place
        )
        for handle in point.fwd_hooks:
            acts_again = handle.is_permanent and is_inside_layer(cut_run.model, place)
            if is_shown or point in changed_points or (is_computed_again and not acts_again):
                hooks, number = torch_hooks(point), handle.hook.id
                guarded.append((hooks, number, hooks[number]))
                why = SHOWS_ONLY if is_shown else PUTS_IN
                hooks[number] = partial(only_looking, hooks[number], f"{place} {why}")
    return guarded


def is_inside_layer(model: Model, place: str) -> bool:
    """Whether a hook lies between what a layer reads and writes, and a second call passes it."""
    match = re.fullmatch(r"blocks\.(\d+)\.(attn|mlp)\.(.*)", place)
    if match is None or match[3] in ("hook_in", "hook_out", "o.hook_out"):
        return False
    # the neurons of a converted MLP are computed from their weights alone
    return match[2] == "attn" or converted_neurons(model, int(match[1])) is None


SHOWN = re.compile(r"blocks\.\d+\.attn\.(hook_pattern|hook_attn_scores|hook_rot_[qk])")
"""The hooks of attention that only show a value where transformers computes the attention."""
PUTS_IN = (
    "changes values, and this run puts in values there or computes "
    "layers a second time. Remove it: model.reset_hooks(including_permanent=True). Only "
    "permanent hooks between what a layer reads and what it writes can stay, such as one "
    "at blocks.0.attn.hook_pattern, and only if no value is put in there."
)
SHOWS_ONLY = (
    "changes a value that this kind of model only shows there: its attention is computed inside "
    "transformers, so the output of the model would stay as it is. Remove the hook: "
    "model.reset_hooks(including_permanent=True). A hook at attn.hook_z in the same layer acts."
)


def only_looking(hook_fn: Callable, problem: str, module: Any, args: Any, value: Any) -> None:
    """Call a hook of torch, and raise a `ValueError` if it changes a value."""
    before = value.clone() if isinstance(value, Tensor) else value
    result = hook_fn(module, args, value)
    after = value if result is None else result
    is_same = after is before
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        is_same = torch.allclose(after, before, rtol=0, atol=0, equal_nan=True)
    if not is_same:
        raise ValueError(f"The hook at {problem}")
