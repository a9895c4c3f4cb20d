"""A processor that rounds otherwise: flip the last bit of about half of the results that torch rounds.

    python -m tools processors --seeds 1 2 3        every notebook on such processors, among others

A processor that adds in another order, or has another `exp`, returns the neighbour of many a result. Inside `LastBit` so
does this one: a result of a sum, a matrix product, a transcendental function or one of their backward forms has its last
mantissa bit flipped when a hash of its value and of the seed says so. The same operation on the same input gives the same
result twice. Results that end in zero bits (0, 1, 0.5, counts) are exact in any order and stay.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

ZERO_BITS = {
    torch.float32: 6,
    torch.float64: 12,
}  # a result that ends in so many zero bits counts as exact
INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}

# Names of operations whose last digit differs between processors; `x_` and `x.out` are found under `x`. Left out: what
# every processor rounds alike (one addition, product, quotient or root) and what only moves values.
NAMES = """
    mm bmm addmm baddbmm addmv mv addr dot vdot linear einsum convolution convolution_backward _foreach_norm
    sum nansum mean nanmean prod cumsum cumprod logcumsumexp logsumexp var std var_mean std_mean norm linalg_vector_norm
    _softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data softmax log_softmax
    exp exp2 expm1 log log2 log10 log1p logaddexp pow rsqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh
    atanh erf erfc erfinv sigmoid softplus gelu silu mish elu selu celu hardswish log_sigmoid_forward lgamma digamma
    tanh_backward sigmoid_backward softplus_backward gelu_backward silu_backward mish_backward elu_backward
    log_sigmoid_backward logit logit_backward
    native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward native_batch_norm
    nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward
    binary_cross_entropy binary_cross_entropy_with_logits _cdist_forward _pdist_forward
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_attention_math embedding_dense_backward index_add scatter_add scatter_reduce index_put
    addcmul addcdiv lerp normal normal_functional randn
    _linalg_eigh linalg_eig _linalg_eigvals linalg_eigvals _linalg_svd linalg_qr linalg_lu_factor_ex linalg_inv_ex
    _linalg_solve_ex linalg_lstsq linalg_cholesky_ex _linalg_det _linalg_slogdet linalg_solve_triangular trace
"""
ROUNDED = set(NAMES.split())


def flip(values: Tensor, seed: int, ulps: int = 1) -> Tensor:
    """The neighbours of about half of the values, by a hash of value and seed; other dtypes than these four as they are.

    `ulps`, a power of two, flips a higher bit: what stands it for 4 has a margin.
    """
    if values.dtype in REAL:
        return torch.view_as_complex(flip(torch.view_as_real(values.resolve_conj()), seed, ulps))
    if values.dtype not in ZERO_BITS:
        return values
    bits = values.resolve_neg().contiguous().view(INTEGER[values.dtype])
    hashed = bits * (
        seed * 0x9E3779B2 + 0x2545F491 & 0x7FFFFFFF | 1
    )  # its high bits depend on every bit of the value
    hashed >>= bits.element_size() * 8 - 5
    hashed &= ulps
    hashed *= (bits & (2 ** ZERO_BITS[values.dtype] - 1)).ne_(0)
    hashed ^= bits
    return hashed.view(values.dtype)


class LastBit(TorchDispatchMode):
    """While it is open, rounded results of torch in this thread have other last bits."""

    def __init__(self, seed: int, ulps: int = 1):
        super().__init__()
        self.seed, self.ulps = seed, ulps

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        if schema.name.removeprefix("aten::").removesuffix("_") not in ROUNDED:
            return result
        if schema.is_mutable:  # in place, or with `out`
            return tree_map_only(
                Tensor, lambda values: values.copy_(flip(values, self.seed, self.ulps)), result
            )
        return tree_map_only(Tensor, lambda values: flip(values, self.seed, self.ulps), result)
