"""attngrad as an attention implementation of Hugging Face transformers.

>>> import attngrad.transformers
>>> attngrad.transformers.register()
>>> # model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attngrad")
"""

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("torch", "transformers"):
        raise
    raise ModuleNotFoundError(
        "attngrad.transformers needs PyTorch and transformers: pip install torch transformers",
        name=error.name,
    ) from None

from ._register import NAME, OLDEST, register

__all__ = ["NAME", "OLDEST", "register"]
