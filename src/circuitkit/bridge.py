"""What the library needs of torch and transformer-lens beyond their public API, all in one file.

The rule SLF001 of ruff refuses private names in all other files. To check a new release of
transformer-lens, compare it with this list, and run `tests/library/models` and `tests/library/ablation`.

* `Module._modules` and `_parameters`, what a module itself holds: `submodules`, `all_modules`, `versions_of_weights`. A bridge hands all other
  names on to the module that it wraps, so `hasattr` finds too much.
* `Module._forward_hooks` and `_forward_pre_hooks`, with `HookPoint.fwd_hooks`, whose handles have
  `hook.id`, `is_permanent` and `user_hook`: `own_hooks_only`, `only_permanent_hooks`, `torch_hooks`.
* `Tensor._version`, which torch raises when a tensor is changed in place: `versions_of_weights`.
* The switches of a bridge as attributes, `use_attn_result` and its like, of a configuration and of a
  block, where they begin with an underscore: `undisturbed`.
* `_original_component` (`without_wrapper`), `split_qkv_matrix` and `split_gate_up_matrix` of a bridge: `unwrapped`.
* `_weights_processed`: `has_folded_weights`.
* `_initialize_hook_registry`, `_setup_hook_compatibility`, `_register_all_aliases_recursive` and
  `_scan_existing_hooks`, behind which new hook points have their names: `name_hooks`.
* `_teardown_capture_hooks` and `_placeholder_hooks_wired`, the bridge's own hooks: `copy_model`, `put_back_own_hooks`.

The rest is public: `cfg`, `hook_dict`, `original_model`, `original_component`, the names of modules
(`blocks`, `attn`, `q`, `mlp`, `ln1`, ...) and of hooks. `circuitkit.first_use` checks when a model is
first used that the values at the hooks are what their names say.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

if TYPE_CHECKING:

    class Model(Protocol):
        """A model as the library uses it. A `TransformerBridge` is one."""

        @property
        def cfg(self) -> Any: ...
        @property
        def original_model(self) -> nn.Module: ...
        @property
        def hook_dict(self) -> dict[str, HookPoint]: ...
        @property
        def W_E(self) -> Tensor: ...
        @property
        def W_U(self) -> Tensor: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
        def modules(self) -> Iterator[nn.Module]: ...
        def __getattr__(self, name: str) -> Any:
            """A module by its name (`blocks`, `unembed`), or anything else that a bridge has."""

else:
    Model = Any  # `require_bridge` checks a model at run time, and its error says what to write


def submodules(module: Any) -> dict[str, Any]:
    """The modules that a module itself holds, by name."""
    return module._modules


def all_modules(*modules: Any) -> list[Any]:
    """These modules and those within them, each once, in the order of `modules()` of torch, which also makes names and takes longer."""
    found: dict[Any, None] = {}
    waiting = list(reversed(modules))
    while waiting:
        module = waiting.pop()
        if module is not None and module not in found:
            found[module] = None
            waiting.extend(reversed(submodules(module).values()))
    return list(found)


# Shapes of models


def norms_close_layers(model: Model) -> bool:
    """Whether `ln1` and `ln2` stand behind the attention and the MLP (BERT), not before them."""
    if not len(model.blocks):
        return False
    modules = submodules(model.blocks[0])
    return "ln1" in modules and "output" in str(modules["ln1"].name)


def final_hook(model: Model) -> str:
    """The hook at which the last stream is read: by BERT's prediction head, or by the last norm."""
    return "mlm_head.hook_in" if "mlm_head" in submodules(model) else "ln_final.hook_in"


def without_wrapper(name: str) -> str:
    """The name of a weight as the wrapped model has it."""
    return name.replace("_original_component.", "")


def has_folded_weights(model: Model) -> bool:
    """Whether transformer-lens has folded the norms of a model into the next weights."""
    return getattr(model, "_weights_processed", False)


def versions_of_weights(model: Model) -> list[tuple[int, int]]:
    """For each weight, where it lies and how often it was changed, as torch counts it."""
    versions = []
    for module in all_modules(model.original_model):
        for weight in module._parameters.values():
            if weight is not None:
                # torch does not count changes of what is made in inference mode
                version = 0 if weight.is_inference() else weight._version
                versions.append((weight.data_ptr(), version))
    return versions


# Values that are others for a while


@contextmanager
def attributes_set(changes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Inside, attributes of objects have other values; a change is an object, a name and a value."""
    before = []
    try:
        for owner, name, value in changes:
            before.append((owner, name, getattr(owner, name)))
            object.__setattr__(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            object.__setattr__(owner, name, value)


@contextmanager
def listeners(functions: Iterable[tuple[nn.Module, Callable]]) -> Iterator[None]:
    """Inside, functions are forward hooks of torch on modules."""
    handles = [module.register_forward_hook(function) for module, function in functions]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def returning(outputs: dict[Any, Any]) -> Iterator[None]:
    """Inside, modules return given values and compute nothing."""
    for module, output in outputs.items():
        # torch has no other way to leave out what a module computes
        module.__dict__["forward"] = lambda *_, output=output, **__: output
    try:
        yield
    finally:
        for module in outputs:
            del module.__dict__["forward"]


# Switches


HOOKS_OF_SWITCHES = {
    "use_attn_result": ("attn.hook_result",),
    "use_split_qkv_input": ("attn.hook_q_input", "attn.hook_k_input", "attn.hook_v_input"),
    "use_attn_in": ("attn.hook_attn_in",),
    "use_hook_mlp_in": ("hook_mlp_in",),
}
"""Each public switch of a bridge, `model.set_use_attn_result(True)` for the first one, and the
hooks in a layer that it lets act. With a switch on, an attention module takes other ways, on which
queries, keys and values have no inputs of their own, or heads no common output."""


@contextmanager
def undisturbed(model: Model) -> Iterator[None]:
    """Inside, dropout, autocast and the switches of a bridge are off; afterwards, all is as it was.

    Hooks of the bridge that `model.reset_hooks(including_permanent=True)` has removed are put back.
    """
    put_back_own_hooks(model)
    settings = ((owner, name, False) for owner, name in settings_that_disturb(model))
    with attributes_set(settings), torch.autocast(model.W_E.device.type, enabled=False):
        yield


def settings_that_disturb(model: Model) -> list[tuple[Any, str]]:
    """Each attribute that is True and has to be False in a run, with the object that holds it."""
    # the wrapped model is no submodule of a bridge
    modules = all_modules(model, model.original_model)
    settings: list[tuple[Any, str]] = [
        (module, "training") for module in modules if module.training
    ]
    owners = {id(model.cfg): model.cfg}
    for block in model.blocks:
        # a layer may hold a copy of the configuration, which the public switches change as well
        for module in (block, *submodules(block).values()):
            config = None if module is None else module.__dict__.get("config")
            owners[id(config)] = config
        owners[id(block)] = block  # holds the switch "_use_hook_mlp_in"
    for owner in owners.values():
        values = getattr(owner, "__dict__", {})
        for switch in HOOKS_OF_SWITCHES:
            settings.extend((owner, name) for name in (switch, f"_{switch}") if values.get(name))
    switches = dict.fromkeys(name.removeprefix("_") for _, name in settings)
    for switch in switches:
        require_no_hooks(model, switch)
    return settings


def require_no_hooks(model: Model, switch: str) -> None:
    """Raise a `ValueError` if a user's hook needs a switch that is off in a run."""
    for layer, block in enumerate(model.blocks):
        for hook in HOOKS_OF_SWITCHES.get(switch, ()):
            point: Any = block
            for name in hook.split("."):
                point = None if point is None else submodules(point).get(name)
            if point is not None and point.fwd_hooks:
                raise ValueError(
                    f"There is a hook at blocks.{layer}.{hook}, which acts only with {switch}. This "
                    "switch is off while circuitkit runs a model, so the hook would do nothing. "
                    "Remove it: model.reset_hooks(including_permanent=True). To replace what a head "
                    "reads, write run(model, tokens, without='L1H3.K', patch=other_tokens)."
                )


# Hooks


@contextmanager
def own_hooks_only(model: Model) -> Iterator[None]:
    """Inside, the hooks that a user has added to a bridge are off, permanent ones as well."""
    changes = []
    for module in dict.fromkeys([*model.modules(), *model.original_model.modules()]):
        if not isinstance(module, HookPoint | GeneralizedComponent):
            continue
        its_users = {
            handle.hook.id: handle.user_hook for handle in getattr(module, "fwd_hooks", ())
        }
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            hooks = getattr(module, name)
            own = type(hooks)(
                (number, hook)
                for number, hook in hooks.items()
                if is_own(its_users.get(number, hook))
            )
            if len(own) < len(hooks):
                changes.append((module, name, own))
    with attributes_set(changes):
        yield


def is_own(hook: Any) -> bool:
    """Whether a hook is a part of the bridge, or was renewed by `copy_model`."""
    function = hook.func if isinstance(hook, partial) else hook
    place = str(getattr(function, "__module__", ""))
    return place.startswith(("transformer_lens.model_bridge", "circuitkit.bridge"))


def put_back_own_hooks(model: Model) -> None:
    """Put back the bridge's own hooks, which are removed with a user's permanent ones."""
    for block in model.blocks:
        for module in submodules(block).values():
            for point, mirror in mirrored(module):
                if not any(is_own(handle.user_hook) for handle in point.fwd_hooks):
                    point.add_hook(partial(seen_by, mirror), is_permanent=True)


def mirrored(module: Any) -> list[tuple[Any, HookPoint]]:
    """The hook points of a module that pass their values on, each with the point that shows them.

    An MLP without a module of its own (OPT, BERT) sees what its matrices see, by hooks of the bridge.
    """
    if module is None or not module.__dict__.get("_placeholder_hooks_wired", False):
        return []
    inner = submodules(module)
    return [
        (getattr(inner[name], hook), getattr(module, hook))
        for name, hook in (("in", "hook_in"), ("out", "hook_out"))
        if name in inner
    ]


@contextmanager
def only_permanent_hooks(module: Any) -> Iterator[None]:
    """Inside, hooks that are not permanent are off: a listener sees each value of a run once.

    Hooks that are added inside are gone afterwards.
    """
    changes = []
    for point in module.modules():
        if not isinstance(point, HookPoint):
            continue
        # new containers: the lists of before are left as they are
        permanent = [handle for handle in point.fwd_hooks if handle.is_permanent]
        hooks = type(point._forward_hooks)()
        for handle in permanent:
            hooks[handle.hook.id] = point._forward_hooks[handle.hook.id]
        changes += [(point, "_forward_hooks", hooks), (point, "fwd_hooks", permanent)]
    with attributes_set(changes):
        yield


def torch_hooks(point: HookPoint) -> dict[int, Any]:
    """The hooks at a point, as torch keeps them: by the number `handle.hook.id`."""
    return point._forward_hooks


def name_hooks(model: TransformerBridge) -> None:
    """Give new hook points their names."""
    model.clear_hook_registry()
    model._setup_hook_compatibility()
    model._initialize_hook_registry()
    model._register_all_aliases_recursive()
    model._scan_existing_hooks(model, "")


# The model behind the bridge


@contextmanager
def unwrapped(model: Model) -> Iterator[None]:
    """Inside, the wrapped model has its own modules again, with the weights of the bridge."""
    swapped: list[tuple[nn.Module, str, Any]] = []

    def unwrap(module: nn.Module, seen: set[nn.Module]) -> None:
        seen.add(module)
        for name, child in list(submodules(module).items()):
            if child is None:
                continue
            inner = original_of(child)
            if inner is not child:
                swapped.append((module, name, child))
                submodules(module)[name] = inner
            if inner not in seen:
                unwrap(inner, seen)

    joints = {}
    for block in model.blocks:
        for bridge in submodules(block).values():
            joints |= rejoined(bridge)
    try:
        unwrap(model.original_model, set())
        for owner, name in joints:
            swapped.append((owner, name, submodules(owner)[name]))
            submodules(owner)[name] = joints[owner, name]
        yield
    finally:
        for module, name, child in reversed(swapped):
            submodules(module)[name] = child


def original_of(module: Any) -> Any:
    """The module that a bridge wraps; a layer that circuitkit has put in stays as it is."""
    while isinstance(module, GeneralizedComponent):
        inner = module.__dict__.get("_original_component") or submodules(module).get(
            "_original_component"
        )
        if inner is None or type(inner).__module__.startswith("circuitkit"):
            return module
        module = inner
    return module


class Rejoined(nn.Module):
    """A linear layer whose outputs are those of several ones, in another order."""

    parts: list[Any]

    def __init__(self, parts: list[Any], order: Int[Tensor, " output"]) -> None:
        super().__init__()
        object.__setattr__(self, "parts", parts)  # the modules belong to the bridge
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        """The outputs in the order of the joint layer."""
        return torch.cat([part(x) for part in self.parts], -1)[..., self.order]


def rejoined(bridge: Any) -> dict[tuple[nn.Module, str], Rejoined]:
    """What replaces the joint projections of a layer that a bridge has split and changed.

    GPT-2 and others compute queries, keys and values with one matrix. A bridge splits it into three
    copies. If their weights were changed (folded norms, an edit), the joint matrix is out of date.
    """
    for split_name, parts_names in (
        ("split_qkv_matrix", ("q", "k", "v")),
        ("split_gate_up_matrix", ("gate", "in")),
    ):
        split = getattr(bridge, "__dict__", {}).get(split_name)
        if split is not None:
            parts = [original_of(submodules(bridge)[name]) for name in parts_names]
            return rejoin(bridge.original_component, split, parts)
    return {}


def rejoin(owner: Any, split: Any, parts: list[Any]) -> dict[tuple[nn.Module, str], Rejoined]:
    """The joint projection of a module, made of its parts, if these have changed since the split."""
    with torch.random.fork_rng(devices=[]):  # a new linear layer draws weights
        old = split(owner)
    if all(is_same_linear(one, other) for one, other in zip(old, parts, strict=True)):
        return {}
    projections: dict[str, Any] = submodules(owner)
    for name, module in projections.items():
        weight = getattr(original_of(module), "weight", None)
        n_outputs = sum(len(part.weight) for part in parts)
        if weight is None or weight.ndim != 2 or n_outputs not in weight.shape:
            continue
        # each output is marked by its number, and the split shows where the numbers go
        numbers = torch.arange(n_outputs, dtype=torch.float64, device=weight.device)
        is_row = weight.shape[0] == n_outputs
        marked = (numbers[:, None] if is_row else numbers).expand(weight.shape).contiguous()
        stand_in = StandIn(owner, name, marked, numbers)
        with torch.random.fork_rng(devices=[]):
            marks = torch.cat([part.weight[:, 0] for part in split(stand_in)]).long()
        return {(owner, name): Rejoined(parts, marks.argsort())}
    return {}


class StandIn:
    """A module of which one projection has other weights."""

    def __init__(self, module: nn.Module, name: str, weight: Tensor, bias: Tensor) -> None:
        self.module = module
        own = getattr(module, name)
        projection: Any = nn.Module()
        projection.weight = nn.Parameter(weight, requires_grad=False)
        has_bias = getattr(own, "bias", None) is not None
        number = nn.Parameter(bias, requires_grad=False) if has_bias else None
        projection.register_parameter("bias", number)
        self.__dict__[name] = projection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def is_same_linear(one: Any, other: Any) -> bool:
    """Whether two linear layers have the same weights."""
    biases = []
    for layer in (one, other):
        bias = getattr(layer, "bias", None)
        biases.append(torch.zeros_like(layer.weight[:, 0]) if bias is None else bias)
    return torch.equal(one.weight, other.weight) and torch.equal(*biases)


# A copy of a bridge


def copy_model(model: TransformerBridge) -> TransformerBridge:
    """A copy of a bridge with weights of its own, and without hooks that a user has put on it."""
    memo: dict[int, Any] = {id(model.tokenizer): model.tokenizer}
    # Blocks keep the stream of their last call. With a gradient it could not be copied.
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach()
    twin = copy.deepcopy(model, memo)
    twin.reset_hooks()
    for module in list(twin.modules()):
        hooks_of_its_own(module)
    return twin


def hooks_of_its_own(module: Any) -> None:
    """Renew the hooks that transformer-lens has put on a module.

    They are functions that hold modules of the first model, and `deepcopy` does not copy functions.
    """
    if hasattr(module, "_teardown_capture_hooks"):
        module._teardown_capture_hooks()  # the next call of the block makes new ones
    for point, mirror in mirrored(module):
        point.remove_hooks(including_permanent=True)
        point.add_hook(partial(seen_by, mirror), is_permanent=True)


def seen_by(mirror: nn.Module, value: Tensor, hook: Any) -> Tensor:
    """Show the value at one hook at another as well."""
    return mirror(value)
