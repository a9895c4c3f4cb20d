"""A pretend device: tensors that say they are on another device, and refuse to meet tensors made on the processor.

No accelerator is needed to find a tool that makes its tensors in the wrong place. `moved(thing)` brings a tensor or a model
there; under `elsewhere()`, operations run on the processor behind the scenes and follow the rules of a real device: numbers
without axes may mix, indices and copies may come from the processor, everything else raises `Clash`.
"""

import copy
from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

PLACE = torch.device("cpu:1")


class Clash(RuntimeError):
    """Tensors of two devices met in one operation."""


class There(torch.Tensor):
    """A tensor whose numbers lie on the processor, and which says that it is elsewhere."""

    @staticmethod
    def __new__(cls, inner):
        out = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            dtype=inner.dtype,
            device=PLACE,
            requires_grad=inner.requires_grad,
        )
        out.inner = inner
        return out

    def __repr__(self):
        return f"There({self.inner!r})"

    def tolist(self):
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        with _Rules():
            return function(*args, **kwargs or {})


_INDEXED = (
    "aten.index.",
    "aten.index_put",
    "aten._to_copy",
    "aten.copy_",
    "aten._local_scalar",
    "aten.lift_fresh",
)


_WAITS = ("aten._local_scalar", "aten.nonzero", "aten.equal", "aten._unique", "aten.unique")


class _Rules(TorchDispatchMode):
    coarse = False
    asked = 0
    """How often something was asked of the device that its next steps depend on."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        flat = [
            x
            for x in torch.utils._pytree.tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        ]
        there = [x for x in flat if isinstance(x, There)]
        here = [x for x in flat if not isinstance(x, There) and x.ndim]
        if there and here and not str(function).startswith(_INDEXED):
            shapes = [tuple(x.shape) for x in here]
            raise Clash(f"{function}: tensors of {shapes} on the processor met tensors on {PLACE}")
        self.asked += bool(there) and str(function).startswith(_WAITS)
        to = kwargs.get("device")
        wrap = bool(there) if to is None else torch.device(to) == PLACE
        if to is not None:
            kwargs["device"] = torch.device("cpu")
        if str(function).startswith("aten._local_scalar"):
            wrap = False
        unwrapped = tree_map(lambda x: x.inner if isinstance(x, There) else x, (args, kwargs))
        out = function(*unwrapped[0], **unwrapped[1])
        fine = [
            x
            for x in torch.utils._pytree.tree_leaves(out)
            if isinstance(x, torch.Tensor) and x.dtype == torch.float64
        ]
        if self.coarse and wrap and fine:
            raise Clash(
                f"{function} made float64 of {tuple(fine[0].shape)} on {PLACE}, which has none"
            )
        if str(function).endswith("_.default") or "out" in kwargs:
            return None if out is None else args[0]
        return tree_map(lambda x: There(x) if wrap and isinstance(x, torch.Tensor) else x, out)


class _Made(TorchFunctionMode):
    """What is made from Python's numbers: `torch.tensor(..., device=)` and `new_tensor`, which no dispatch sees whole."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        new = function is torch.Tensor.new_tensor
        if new or function in (torch.tensor, torch.as_tensor):
            place = torch.device(kwargs.pop("device", None) or (args[0].device if new else "cpu"))
            if new:
                kwargs.setdefault("dtype", args[0].dtype)
            out = (torch.as_tensor if function is torch.as_tensor else torch.tensor)(
                *args[new:], **kwargs
            )
            return There(out) if place == PLACE and not isinstance(out, There) else out
        if (
            function in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
            and args[0].ndim == 1 < args[1].ndim
        ):
            return function(args[0][None], args[1])[
                ..., 0, :
            ]  # torch squeezes in place, which a wrapper does not see
        return function(*args, **kwargs)


@contextmanager
def elsewhere(coarse=False):
    """Tensors that are made there stay there; a `coarse` device has no float64."""
    with pytest.MonkeyPatch.context() as patch, _Made(), _Rules() as rules:
        patch.setattr(
            torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True
        )  # a module's numbers move, too
        patch.setattr("circuitkit._precision._COARSE", (str(PLACE),) if coarse else ())
        rules.coarse = coarse
        yield rules


def moved(thing, place=PLACE, coarse=False):
    """Anything (a model, heads, a list of these) with every tensor in it on a device; what is given stays."""
    here = torch.Tensor.__deepcopy__, torch.nn.Parameter.__deepcopy__

    def there(tensor):
        tensor = tensor.detach().clone()
        tensor = tensor.float() if coarse and tensor.dtype == torch.float64 else tensor
        return There(tensor) if place == PLACE else tensor.to(place)

    torch.Tensor.__deepcopy__ = lambda self, memo: memo.setdefault(id(self), there(self))
    torch.nn.Parameter.__deepcopy__ = lambda self, memo: memo.setdefault(
        id(self), torch.nn.Parameter(there(self), requires_grad=self.requires_grad)
    )
    copy._deepcopy_dispatch[torch.Generator] = lambda self, memo: self
    try:
        return copy.deepcopy(thing)
    finally:
        del copy._deepcopy_dispatch[torch.Generator]
        torch.Tensor.__deepcopy__, torch.nn.Parameter.__deepcopy__ = here
