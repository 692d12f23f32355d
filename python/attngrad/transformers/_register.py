"""Registration: the one word that models choose their attention by."""

from __future__ import annotations

import transformers
from packaging.version import Version

NAME = "attngrad"
OLDEST = "5.4.0"  # the first release whose mask functions are given q_length and q_offset


def register() -> None:
    """Makes attn_implementation="attngrad" known to transformers: the attention and the function that makes its masks.

    Models that are made or loaded with this word, and those whose set_attn_implementation("attngrad") is called, then
    compute their attention with attngrad; those that have attention of their own raise NotImplementedError. Calling it
    again changes nothing.
    """
    if Version(transformers.__version__) < Version(OLDEST):
        raise NotImplementedError(
            f"transformers: release {transformers.__version__}, but attngrad needs {OLDEST} or newer"
        )
    from ._attention import attention
    from ._interface import watch
    from ._masks import make_mask

    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, make_mask)
    watch(NAME)
