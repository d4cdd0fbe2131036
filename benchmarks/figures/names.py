"""What contestants are called in tables and pictures."""

from __future__ import annotations

from benchmarks.result import CHOICE, COVER_ATTENTION, DENSE_ATTENTION, DENSE_RATE

# In the order in which pictures show them.
PEERS = {
    "torch_dense": "dense",
    "triton_tuned": "Triton, tuned",
    "triton_sm80": "Triton, sm_80",
    "triton_default": "Triton, default",
    "stk": "stk",
    "torch_bsr": "torch BSR",
    "torch_csr": "torch CSR",
    "cusparse_bsr": "cuSPARSE BSR",
    "cusparse_blocked_ell": "Blocked-ELL",
    "scipy_bsr": "SciPy BSR",
    "torch_attention": "torch SDPA",
    "torch_cudnn": "torch SDPA, cuDNN",
    "torch_flash": "torch SDPA, flash",
    "torch_efficient": "torch SDPA, efficient",
    "flex_attention": "FlexAttention",
    "flash_attention_4": "FlashAttention 4",
    "cudnn_bsa": "cuDNN BSA",
}
OTHERS = {
    CHOICE: "sparse_autotune",
    DENSE_RATE: "dense, data without zeros",
    COVER_ATTENTION: "FlexAttention, blocks of 128 around the mask's",
    DENSE_ATTENTION: "torch SDPA, no mask",
}


def shown(name: str | None) -> str:
    """A contestant's name for readers."""
    return "–" if name is None else PEERS.get(name) or OTHERS.get(name) or name
